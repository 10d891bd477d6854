"""From videos to rows of predictions, and from rows to accuracy; on one machine or many."""

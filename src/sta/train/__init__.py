"""Training: the embedded models, and any backbone by the paper's recipe, dense or pruned."""

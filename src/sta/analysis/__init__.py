"""Looking into a forward: the scores behind a choice, redundancy (S), importance (GradNorm)."""

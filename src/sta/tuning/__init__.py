"""Settings that meet a target, and ablations: one choice of the method at a time."""

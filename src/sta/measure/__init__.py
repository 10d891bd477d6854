"""Measuring time and memory so that a figure can be trusted on a shared, noisy machine."""

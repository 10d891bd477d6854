"""Stands in for torchcodec, where it is not installed, in tests; decodes with PyAV."""

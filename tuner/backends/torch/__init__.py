"""PyTorch as a backend: what it can run, and the packed functions that compiled modules call."""

"""Trials of kernels for benchmarks: built and measured in the process, or replayed from records."""

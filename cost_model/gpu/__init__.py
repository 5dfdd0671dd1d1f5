"""Latencies of kernels on GPUs, also on those that are not here, from measurements of others."""

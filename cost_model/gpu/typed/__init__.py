"""Latencies of kernels by data type on data-centre GPUs: products, attention, experts, collectives."""

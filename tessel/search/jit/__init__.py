"""Compiled kernels: numba with its cache, and random numbers that are the same compiled and uncompiled."""

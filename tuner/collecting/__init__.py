"""Collect training data for the cost model: kernels and stages of the zoo's models."""

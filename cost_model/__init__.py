"""Predict latencies, with intervals, from records alone."""

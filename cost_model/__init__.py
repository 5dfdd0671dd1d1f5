"""Predict latencies, with intervals, from records alone; needs neither TVM nor torch."""

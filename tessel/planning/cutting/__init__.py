"""Cuts of a model into stages, and which of them recompute."""

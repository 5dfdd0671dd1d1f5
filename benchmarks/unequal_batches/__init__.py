"""Micro-batches that differ: recorded steps replayed and improved, and searches on random batches."""

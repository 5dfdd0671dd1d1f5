"""Searches for micro-batches that differ: their order and that of their blocks, and which replica runs which."""

"""Searches for micro-batches that differ: their order, that of their blocks, and which replica runs which."""

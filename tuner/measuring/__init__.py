"""Measure programs on the target, in a worker process that survives crashes and hangs, and keep every
outcome."""

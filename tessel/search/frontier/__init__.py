"""Frontiers: the least period or makespan at each memory limit."""

"""Searched schedules of random placements against hand-written ones and CP-SAT."""

"""Simulated makespans against real ones on this machine's processors."""

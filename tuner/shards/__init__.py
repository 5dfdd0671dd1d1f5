"""Shard a stage's functions over several devices, by rules of operators and collectives between."""

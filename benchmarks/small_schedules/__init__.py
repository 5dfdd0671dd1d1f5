"""Proofs of small schedules, against CP-SAT."""

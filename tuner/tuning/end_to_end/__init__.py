"""Whole programs: measured once each, checked against the model, and raced against one another."""

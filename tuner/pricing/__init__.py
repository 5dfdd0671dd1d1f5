"""Prices of candidates: measured, predicted, or measured only where the decision needs it."""

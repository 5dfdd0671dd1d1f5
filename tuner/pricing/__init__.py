"""How candidates get their prices: measured, predicted, or measured only where the decision needs it."""

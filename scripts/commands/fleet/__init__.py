"""Commands that offer this machine to a fleet, and show what a fleet does."""

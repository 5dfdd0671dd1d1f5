"""What to run first on a GPU that is at hand for minutes."""

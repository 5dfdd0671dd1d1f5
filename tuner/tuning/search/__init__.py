"""A search as its options ask for it: what they say, what they open, and the trials that they spend."""

"""The layouts that a model is tuned for: how it is cut for each, and the order of its blocks."""

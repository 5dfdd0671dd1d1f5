"""Where to cut a model into stages, and which of them recompute."""

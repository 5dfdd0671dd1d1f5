"""A plan's stages as programs that a pipeline engine can run: compiled by TVM, or the model's own torch
modules."""

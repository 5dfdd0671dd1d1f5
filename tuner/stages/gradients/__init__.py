"""Gradients of operators: this package's own, and TVM's where it has none."""

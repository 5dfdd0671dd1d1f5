"""Backends, which run sub-graphs: TVM itself, tuned TVM, and libraries."""

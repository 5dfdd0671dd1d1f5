"""What can run a sub-graph: TVM itself, tuned TVM, and libraries."""

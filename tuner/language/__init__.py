"""A language model of tensor programs: it reads a kernel, and writes the decisions of its schedule."""

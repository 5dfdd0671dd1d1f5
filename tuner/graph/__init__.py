"""The data-flow graph of a Relax function, sets over it, and sub-graphs."""

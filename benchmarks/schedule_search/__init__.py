"""The schedule search: periods and makespans beside CP-SAT, and how well it keeps its limits."""

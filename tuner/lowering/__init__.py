"""From a Relax function to programs that run: workloads, outlined parts, bound weights, compiled modules."""

"""Public architectures in tiny configurations, and whether they can be imported, partitioned and run."""

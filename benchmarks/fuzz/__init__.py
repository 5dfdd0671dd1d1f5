"""What `benchmarks.fuzz` changes: the formats that commands read, and the ways to change a file."""

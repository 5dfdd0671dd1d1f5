"""Command-line options: how they are declared, read, checked against each other, and completed."""

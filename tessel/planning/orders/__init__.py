"""Orders of hand-written rules, in which thousands of cuts are timed."""

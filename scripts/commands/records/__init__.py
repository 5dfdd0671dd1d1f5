"""`tessel records`: what was measured so far, and tools to manage it."""

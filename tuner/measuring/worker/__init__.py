"""What the worker process does: build programs, draw inputs, compare results, and take samples."""

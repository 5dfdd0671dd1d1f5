"""Work of the worker process: build programs, draw inputs, compare results, and take samples."""

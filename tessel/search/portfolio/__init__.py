"""Several searches of one problem, side by side in processes."""

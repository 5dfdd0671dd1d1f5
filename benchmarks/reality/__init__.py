"""Estimates of training steps beside real runs, from extracts of public collections; see `__main__`."""

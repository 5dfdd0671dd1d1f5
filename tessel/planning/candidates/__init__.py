"""Ways to use the devices: which there are, their bounds, their first cuts, and the best of each so far."""

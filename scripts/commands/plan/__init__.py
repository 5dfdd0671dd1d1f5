"""`tessel plan`: from a table of layer timings to degrees, cuts, placement and order on so many devices."""

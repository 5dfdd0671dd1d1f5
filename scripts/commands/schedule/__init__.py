"""`tessel schedule`: search for the order of all micro-batches on a placement."""

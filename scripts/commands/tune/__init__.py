"""`tessel tune`: from a model and a target to a partition, stages, a schedule, a comparison and a picture."""

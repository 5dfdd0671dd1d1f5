"""Lower bounds of a whole schedule, and how they are raised while it is searched."""

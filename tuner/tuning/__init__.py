"""The main job: partition a model, cut it into stages, measure both, and hand over a plan."""

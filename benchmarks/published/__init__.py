"""Published training runs beside what a plan predicts for their layouts, from a config and a GPU's name."""

"""Targets: their names, what they resolve to here, and what their devices can do at best."""

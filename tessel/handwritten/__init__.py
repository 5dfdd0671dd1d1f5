"""Hand-written schedules, one a module, built from per-device instruction streams."""

"""Search for schedules: bounds, repetends, ramps and whole schedules."""

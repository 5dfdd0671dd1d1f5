"""Search for schedules in which a forward and a backward of a device may run together."""

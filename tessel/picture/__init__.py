"""Pictures of schedules: bars first, then drawing."""

"""What hand-written schedules are built of: pipelines, rules, streams of instructions, building blocks."""

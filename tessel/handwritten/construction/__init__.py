"""Parts of hand-written schedules: pipelines, rules, streams of instructions, building blocks."""

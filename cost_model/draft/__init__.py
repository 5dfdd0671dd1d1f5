"""The draft model: ranks schedules by their decisions alone, without building or replaying any of them."""

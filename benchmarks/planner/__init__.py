"""Plans beside hand-written schedules, on measured profiles and on made-up ones."""

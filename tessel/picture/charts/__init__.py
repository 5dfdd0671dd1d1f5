"""Charts beside a schedule: its memory, gains over 1F1B, and what more memory buys."""

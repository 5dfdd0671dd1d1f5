"""`tessel run`: run schedules on real ranks, check what they compute, and time them."""

"""`Plan.run` and `tessel run`: a schedule on real ranks, checked and timed."""

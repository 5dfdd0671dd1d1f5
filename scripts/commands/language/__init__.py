"""`tessel language`: train the tensor language model, generate schedules with it, and measure them."""

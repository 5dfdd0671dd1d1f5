"""Place stages on devices, find the order of all blocks, compare it with hand-written ones, and run it."""

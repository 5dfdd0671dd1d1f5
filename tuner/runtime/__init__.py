"""What a compiled program needs to run: packed functions, its machine, its weights; nothing of the tuner."""

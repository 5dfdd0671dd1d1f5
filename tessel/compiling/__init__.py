"""Compile a model into a program: the best mix of backends, called, saved, loaded and handed to torch."""

"""Searches under way: in a thread beside the one that handles Ctrl-C, compiled or not."""

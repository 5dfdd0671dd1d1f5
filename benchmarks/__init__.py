"""Runnable measurements, and dated reports of what they found; imported by nothing."""

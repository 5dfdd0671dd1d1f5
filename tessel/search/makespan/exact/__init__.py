"""Exact search of small whole schedules: every state worth reaching, those that are dominated left out."""

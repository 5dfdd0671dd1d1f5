"""Choices for a tuned model beside the order: its placements, and which stages recompute."""

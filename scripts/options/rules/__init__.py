"""Which options go together, a family of commands per module."""

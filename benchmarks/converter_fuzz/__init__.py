"""Torch's own table of operators, imported and compared with torch."""

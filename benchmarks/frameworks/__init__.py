"""Exported plans in the frameworks themselves: three steps each, held against one process."""

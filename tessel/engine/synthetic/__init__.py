"""Ranks that sleep for as long as their blocks take: overheads are measured on them, without a model."""

"""Converters of the operators of neural-network layers: convolutions, pooling, attention and their like."""

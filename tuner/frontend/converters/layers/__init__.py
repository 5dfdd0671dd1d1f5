"""Converters of the operators of neural-network layers: convolutions, pooling, attention, losses."""

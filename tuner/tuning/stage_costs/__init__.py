"""Costs of layers, stages and shards of a model: measured, predicted, or put together from sub-graphs."""

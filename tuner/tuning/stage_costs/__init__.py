"""What layers, stages and shards of a model cost: measured, predicted, or put together from sub-graphs."""

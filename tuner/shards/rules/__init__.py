"""How operators run over shards: one rule a module, found by the operator's name."""

"""Rules of operators over shards: one a module, found by the operator's name."""

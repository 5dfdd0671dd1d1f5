"""The whole plan on real models: layouts planned from measured layers, beside hand-written ways."""

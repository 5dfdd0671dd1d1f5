"""`tessel cost-model`: train the model on records, evaluate it, and predict with it."""

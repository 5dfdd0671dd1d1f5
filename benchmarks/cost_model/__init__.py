"""How well the cost model predicts, on records that it was not trained on."""

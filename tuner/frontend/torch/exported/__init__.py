"""Files of `torch.export`, read without running any code that they contain."""

"""Compiled programs as a user calls them, beside onnxruntime, torch.compile and torch eager."""

"""Whole networks, partitioned, against single backends, torch and ONNX Runtime."""

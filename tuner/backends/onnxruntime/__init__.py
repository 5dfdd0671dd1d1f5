"""onnxruntime as a backend: contiguous sub-graphs exported to ONNX and run as one call."""

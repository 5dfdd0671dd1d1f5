"""The import of ONNX operators beside the results that onnx's own tests of operators state."""

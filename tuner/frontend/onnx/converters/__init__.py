"""Operators of ONNX in Relax's own."""

"""Bring models into Relax: the zoo, ONNX files, torch programs."""

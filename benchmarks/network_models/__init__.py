"""The networks of benchmarks/networks as torch modules, in their published sizes, with random weights.

Each function returns a module and its inputs, batch 1, as `load_model("benchmarks.network_models:NAME")` and
`tessel partition benchmarks.network_models:NAME` want it. One set of weights so serves torch, the ONNX file
for onnxruntime and the partitioned model. What differs from the published models: FLAVA has no class token
and pools by the mean; mT5 has T5's vocabulary of 32 128 words instead of 250 112, so that all contenders fit
in memory at once.
"""

from benchmarks.network_models.convolutional import densenet, mobilenet, resnet50, squeezenet
from benchmarks.network_models.transformers import bert, flava, gpt2, mt5

__all__ = ["bert", "densenet", "flava", "gpt2", "mobilenet", "mt5", "resnet50", "squeezenet"]

"""Bring models into Relax: the zoo, ONNX files, torch programs."""

from tuner.frontend.loading import is_code, load_model, names_file, require_trust
from tuner.frontend.model import InputSpec, Model
from tuner.frontend.values import random_inputs, random_parameter, random_parameters
from tuner.frontend.zoo import MODELS, ZooModel

__all__ = [
    "MODELS",
    "InputSpec",
    "Model",
    "ZooModel",
    "is_code",
    "load_model",
    "names_file",
    "random_inputs",
    "random_parameter",
    "random_parameters",
    "require_trust",
]

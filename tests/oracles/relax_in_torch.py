"""Evaluate a Relax function in torch, binding by binding; neither TVM's build nor our lowering is in it."""

from __future__ import annotations

import numpy as np
import torch

from tuner.programs.torch_machine import TorchProgram


def run_in_torch(module, arrays):
    """Return the outputs of a module's `main` as arrays, held to the types that TVM inferred."""
    function = module["main"]
    given = [torch.from_numpy(np.array(array)) for array in arrays]
    for parameter, tensor in zip(function.params, given, strict=True):
        assert tuple(map(int, parameter.ty.shape)) == tuple(tensor.shape), parameter.name
        assert str(parameter.ty.dtype) == str(tensor.dtype).removeprefix("torch."), parameter.name
    found = TorchProgram(module, is_checked=True).run(given)
    return [tensor.numpy() for tensor in found]

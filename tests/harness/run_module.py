"""Run a built module once, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tuner.lowering.lower import flat_arrays
from tuner.lowering.weight_binding import bound_arguments
from tuner.targets.resolution import tvm_device
from tuner.targets.target import Target


def run_module(
    executable: Any, arguments: Sequence[np.ndarray], target: Target, function: str = "main"
) -> tuple[np.ndarray, ...]:
    """Run a function once and return its results, flattened, as arrays of their own."""
    device = tvm_device(target)
    machine = relax.VirtualMachine(executable, device)
    tensors = [tvm.runtime.tensor(argument, device) for argument in arguments]
    if function == "main":
        tensors = bound_arguments(machine, tensors)
    return flat_arrays(machine[function](*tensors))

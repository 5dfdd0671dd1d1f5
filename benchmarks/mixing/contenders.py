"""What runs beside the partitioned network, each as a function that gives one tensor."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import tvm
from torch.utils import dlpack
from tvm import relax

from tuner.frontend import Model
from tuner.frontend.torch.arrays import as_array
from tuner.lowering.lower import build_module, lower_module
from tuner.lowering.weight_binding import bound_arguments
from tuner.tuning.partitioned_function import PartitionedFunction
from tuner.tuning.session import Session

Run: TypeAlias = Callable[[], torch.Tensor]


def eager(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Run:
    def run() -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = module(*inputs)
        return found

    return run


def compiled_by_torch(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Run:
    """Return the module compiled by torch.

    Raises:
        Exception: it cannot be compiled here, for want of a compiler or by one of torch's own errors.
    """
    made = torch.compile(module)

    def run() -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = made(*inputs)
        return found

    run()  # which compiles
    return run


def onnxruntime_alone(module: torch.nn.Module, inputs: Sequence[torch.Tensor], threads: int) -> Run:
    """Return the module as onnxruntime runs the file that torch exports.

    Raises:
        Exception: it cannot be exported, or onnxruntime has no kernel for one of its operators.
    """
    import onnxruntime  # noqa: PLC0415 - it need not be here

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(module, tuple(inputs), path, dynamo=True, external_data=True, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {spec.name: each.numpy() for spec, each in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: torch.from_numpy(session.run(None, feed)[0])


def program_arguments(model: Model, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """Return a program's arguments: inputs, then weights."""
    weights = [np.asarray(model.parameters[name], order="C") for name in model.parameter_names]
    # Copies, for the virtual machine wants memory that is aligned to its vectors.
    return [tvm.runtime.tensor(array) for array in (*map(as_array, inputs), *weights)]


def partitioned(function: PartitionedFunction, session: Session, arguments: Sequence[Any]) -> Run:
    """Return a program of partitions, with its weights bound."""
    lowered = lower_module(function.module, session.backends, session.target)
    machine = relax.VirtualMachine(build_module(lowered, session.target), tvm.cpu())
    main, bound = machine["main"], bound_arguments(machine, arguments)
    return lambda: _first_tensor(main(*bound))


def programs(
    functions: Mapping[str, PartitionedFunction], session: Session, arguments: Sequence[Any]
) -> dict[str, Run]:
    """Return what runs each distinct program, under the first of its names."""
    made: dict[str, Run] = {}
    seen: set[str] = set()
    for label, function in functions.items():
        if function.fingerprint not in seen:
            seen.add(function.fingerprint)
            made[label] = partitioned(function, session, arguments)
    return made


def _first_tensor(result: Any) -> torch.Tensor:
    """Return a program's first result where it lies."""
    while not hasattr(result, "__dlpack__"):
        result = result[0]
    found: torch.Tensor = dlpack.from_dlpack(result)
    return found

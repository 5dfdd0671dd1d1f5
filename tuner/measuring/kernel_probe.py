"""A GPU's peak rates by TVM's own kernels, where torch does not reach it: see `tuner.targets.device_probe`.

A product scheduled by DLight is further from a GPU's peak than a library's; the kernels that are measured
later contradict it where they are faster, and predictions start from them then. Copies reach the same, and
the cost of a call is the slope over chains of small kernels, the
virtual machine's own share included. Checked in tests/software_gpu/device_probe.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from cost_model.roofline import PROBE_COPY_ELEMENTS, PROBE_EXTENT
from tuner.graph.relax_types import IRModule
from tuner.lowering.lower import build_module
from tuner.lowering.machine import load_machine
from tuner.targets.device_probe import Probes, answer_with
from tuner.targets.resolution import resolve_target, tvm_device
from tuner.targets.target import Target

_CHAIN_LENGTHS = (8, 136)
_CALLS_IN_SAMPLE = 10
_MICROSECONDS = 1e6


def kernel_probes(
    target: Target, *, extent: int = PROBE_EXTENT, copied_elements: int = PROBE_COPY_ELEMENTS
) -> Probes:
    """Return what takes one sample of each probe, in microseconds by the device's clock.

    Args:
        target: a GPU of this machine.
        extent: of the square product.
        copied_elements: of the copy, float32.
    """
    device = tvm_device(target)
    square, vector, small = (extent, extent), (copied_elements,), (1, 16)
    product = _timer(target, device, _module([square, square], relax.op.matmul), [square, square])
    # A sum with one number, which reads and writes each element once as a copy does.
    copy = _timer(target, device, _module([vector, (1,)], relax.op.add), [vector, (1,)])
    chains = [
        _timer(target, device, _module([small], lambda value, length=length: _chain(value, length)), [small])
        for length in _CHAIN_LENGTHS
    ]
    short, long = chains
    return {
        "peak": product,
        "bandwidth": copy,
        "call": lambda: max(1e-3, (long() - short()) / (_CHAIN_LENGTHS[1] - _CHAIN_LENGTHS[0])),
    }


def _module(shapes: list[tuple[int, ...]], make: Callable[..., Any]) -> IRModule:
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"input{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(make(*inputs)))
        builder.emit_func_output(result)
    return builder.get()


def _chain(value: Any, length: int) -> Any:
    for _ in range(length):
        value = relax.op.sum(value, axis=0, keepdims=True)  # of one row; no sum is fused with the next
    return value


def _timer(
    target: Target, device: Any, module: IRModule, shapes: list[tuple[int, ...]]
) -> Callable[[], float]:
    machine = load_machine(build_module(module, target), device)
    rng = np.random.default_rng(0)
    tensors = [tvm.runtime.tensor(rng.random(shape, dtype=np.float32), device) for shape in shapes]
    evaluator = machine.time_evaluator("main", device, number=_CALLS_IN_SAMPLE, repeat=1)
    return lambda: float(evaluator(*tensors).results[0]) * _MICROSECONDS


if __name__ == "__main__":
    probed = resolve_target(sys.argv[1])
    answer_with(lambda: kernel_probes(probed), parent=int(sys.argv[3]))

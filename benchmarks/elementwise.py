"""Nanoseconds an element of functions without a product: kernels of `tvm` beside torch, in turn.

Each function of a tensor of float32 is imported from torch, lowered by the rules of `tvm`, and run on one
thread, a round of it and a round of torch eager after another. Times are of the thread's processor time, so
that what else runs on the machine counts little. Results are compared with torch's.

    taskset -c 1 python -m benchmarks.elementwise
    taskset -c 1 python -m benchmarks.elementwise silu softmax
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import tvm
from torch import nn
from torch.nn import functional

from tuner.frontend.torch.program import import_module
from tuner.lowering.lower import build_module, flat_arrays
from tuner.lowering.machine import load_machine
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

SHAPE = (256, 1024)

_ROUNDS = 15

_TOLERANCE = 1e-5
"""Of the largest result."""

Function = Callable[[torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "add": lambda x: x + 1,
    "maximum": lambda x: torch.maximum(x, x * 0.5),
    "leaky_relu": functional.leaky_relu,
    "hardswish": functional.hardswish,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": lambda x: torch.log(x.abs() + 1),
    "log1p": lambda x: torch.log1p(x.abs()),
    "sqrt": lambda x: torch.sqrt(x.abs()),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 1),
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "glu": functional.glu,
    "logsigmoid": functional.logsigmoid,
    "softplus": functional.softplus,
    "mish": functional.mish,
    "elu": functional.elu,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "gelu": functional.gelu,
    "gelu of tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5),
    "sum": lambda x: x.sum(-1),
    "argmax": lambda x: x.argmax(-1),
    "sin": torch.sin,
    "atan": torch.atan,
    "round": torch.round,
    "pow 1.5": lambda x: x.abs() ** 1.5,
}


class _Module(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def measure(name: str, target: Target) -> tuple[float, float]:
    """Return nanoseconds an element of our kernel and of torch; end the program where results differ."""
    module = _Module(FUNCTIONS[name]).eval()
    drawn = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    imported = import_module(module, (drawn,), name)
    machine = load_machine(build_module(imported.module, target), tvm.cpu())
    main, argument = machine["main"], tvm.runtime.tensor(drawn.numpy())
    with torch.inference_mode():
        found, expected = flat_arrays(main(argument))[0], module(drawn).numpy()
        error = float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))
        if not error <= _TOLERANCE:
            sys.exit(f"{name} differs from torch by {error:.1e} of the largest result")
        runs: tuple[Callable[[], object], ...] = (lambda: main(argument), lambda: module(drawn))
        samples: tuple[list[float], list[float]] = ([], [])
        for _ in range(_ROUNDS):
            for run, own in zip(runs, samples, strict=True):
                run()
                began_ns = time.thread_time_ns()
                run()
                own.append((time.thread_time_ns() - began_ns) / drawn.numel())
    ours, torchs = map(statistics.median, samples)
    return ours, torchs


def main() -> None:
    if os.environ.get("OMP_NUM_THREADS") != "1":
        command = [sys.executable, "-m", "benchmarks.elementwise", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"OMP_NUM_THREADS": "1"})
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("functions", nargs="*", metavar="FUNCTION", help=", ".join(FUNCTIONS))
    names = parser.parse_args().functions or FUNCTIONS
    unknown = [name for name in names if name not in FUNCTIONS]
    if unknown:
        parser.error(f"there is no function {unknown[0]!r}; give some of {', '.join(FUNCTIONS)}")
    torch.set_num_threads(1)
    target = resolve_target("cpu", num_threads=1)
    print("| function | tvm, ns | torch, ns | torch over tvm |\n|---|--:|--:|--:|")
    for name in names:
        ours, torchs = measure(name, target)
        print(f"| {name} | {ours:.2f} | {torchs:.2f} | {torchs / ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()

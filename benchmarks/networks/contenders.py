"""What runs a network beside the partitioned model: torch eager and compiled, and ONNX Runtime alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
import torch._inductor.config

REMEDIES = {
    "torch.compile": "install a C++ compiler that torch finds, such as g++",
    "torch.compile frozen": "install a C++ compiler that torch finds, such as g++",
    "onnxruntime alone": "install what benchmarks need by pip install 'tessel-tuner[bench]' or make bench",
}
"""What to do where a contender cannot run."""


Run: TypeAlias = Callable[[], np.ndarray]


def other_contenders(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], name: str, arguments: argparse.Namespace
) -> dict[str, Run]:
    """Return what the mix is compared with; the program ends with a remedy where one of it cannot run."""
    found: dict[str, Run] = {"torch eager": eager(module, inputs)}
    makers: dict[str, Callable[[], Run]] = {
        "torch.compile": lambda: _inductor(module, inputs, freezing=False),
        "torch.compile frozen": lambda: _inductor(module, inputs, freezing=True),
        "onnxruntime alone": lambda: _onnxruntime(module, inputs, Path(arguments.out).with_name(name)),
    }
    for label, make in makers.items():
        if label in arguments.without:
            continue
        try:
            found[label] = make()
        except Exception as error:  # a missing compiler, package or operator: a dash would hide it
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            sys.exit(
                f"{name}: {label} cannot run here ({reason}); {REMEDIES[label]}, or leave it out by "
                f"--without {label!r}"
            )
    return found


def eager(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Run:
    def run() -> np.ndarray:
        with torch.inference_mode():
            return module(*inputs).numpy()

    return run


class _Plain(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.module(*inputs)


class _Frozen(_Plain):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.module(*inputs)


def _inductor(module: torch.nn.Module, inputs: Sequence[torch.Tensor], *, freezing: bool) -> Run:
    # torch keeps compiled code by the Python function it came from, so each way has a function of its own.
    compiled = torch.compile((_Frozen if freezing else _Plain)(module).eval())

    def run() -> np.ndarray:
        with torch.no_grad():
            return compiled(*inputs).numpy()

    with torch._inductor.config.patch(freezing=freezing):
        run()  # which compiles
    return run


def _onnxruntime(module: torch.nn.Module, inputs: Sequence[torch.Tensor], folder: Path) -> Run:
    import onnxruntime  # noqa: PLC0415 - it need not be here

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    torch.onnx.export(module, tuple(inputs), path, dynamo=True, external_data=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    feed = {spec.name: each.numpy() for spec, each in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feed)[0]

"""A chain of small torch stages, as ranks of the engine's tests import it, and the truth about it.

Stage 0 makes a tensor that only the last stage reads, so every stage between relays it. One stage may be told
to fail.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from torch import nn

from tuner.plan import TensorInfo
from tuner.programs.autograd_stage import AutogradStage, StageAction
from tuner.programs.step_results import Tensors

WIDTH = 8
ROWS = 4


@dataclass(frozen=True)
class Step:
    """One action of a stage's program, as a rank asks for it."""

    kind: str
    micro_batch: int


class ChainSpec(msgspec.Struct, frozen=True):
    """How many stages, and what goes wrong in one of them."""

    num_stages: int
    mishap: str = ""
    at_stage: int = 1


@dataclass(frozen=True)
class ChainStage:
    """What `AutogradStage` asks of a stage."""

    module: nn.Module
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    received: tuple[TensorInfo, ...]
    sent: tuple[TensorInfo, ...]
    relayed: tuple[str, ...]


class Layer(nn.Module):
    """Multiplies, and at the ends makes or takes the tensor that others relay."""

    def __init__(self, number: int, num_stages: int) -> None:
        super().__init__()
        torch.manual_seed(number)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.is_first = number == 0
        self.is_last = number == num_stages - 1

    def forward(self, x: torch.Tensor, skip: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        y = torch.tanh(self.linear(x))
        if self.is_first:
            return y, torch.sin(y)
        return (y if skip is None else y * skip,)


class FailingStage(AutogradStage):
    """Fails in its second micro-batch's forward."""

    mishap = ""

    def run(self, action: StageAction, given: Mapping[str, torch.Tensor]) -> Tensors:
        if (action.kind, action.micro_batch) == ("F", 1):
            print("about to fail", flush=True)
            match self.mishap:
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "hang":
                    time.sleep(3600)
                case "stop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "stop briefly":
                    code = f"sleep 1; kill -CONT {os.getpid()}"
                    subprocess.Popen(["sh", "-c", code], start_new_session=True)
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "hold the interpreter":
                    # ctypes.PyDLL keeps the interpreter's lock, so no other thread of this process runs.
                    ctypes.PyDLL(None).usleep(900_000)
                case _:
                    raise RuntimeError("this stage was told to raise")
        return super().run(action, given)


def provide(spec_json: str, stage_numbers: Sequence[int]) -> dict[int, AutogradStage]:
    """Build stages as the engine's ranks ask for them."""
    spec = msgspec.json.decode(spec_json, type=ChainSpec)
    programs = {}
    for number in stage_numbers:
        kind = FailingStage if spec.mishap and number == spec.at_stage else AutogradStage
        stage = chain_stage(number, spec.num_stages)
        programs[number] = kind(
            stage,
            inputs=draw_inputs,
            loss=_loss if number == spec.num_stages - 1 else None,
            differentiable=frozenset(info.name for info in (*stage.received, *stage.sent)),
        )
        if isinstance(programs[number], FailingStage):
            programs[number].mishap = spec.mishap
    return programs


def chain_stage(number: int, num_stages: int) -> ChainStage:
    """Return one stage of the chain: `h0` → `h1`, …; `skip` goes from the first to the last."""
    is_first, is_last = number == 0, number == num_stages - 1
    received = () if is_first else (tensor(f"h{number}"), tensor("skip"))
    outputs = (tensor(f"h{number + 1}"),) + ((tensor("skip"),) if is_first else ())
    return ChainStage(
        module=Layer(number, num_stages),
        inputs=received if is_last else (tensor(f"h{number}"),),
        outputs=outputs,
        received=received,
        sent=() if is_last else (tensor(f"h{number + 1}"), tensor("skip")),
        relayed=() if is_first or is_last else ("skip",),
    )


def tensor(name: str, *shape: int) -> TensorInfo:
    """Describe a tensor of numbers."""
    shape = shape or (ROWS, WIDTH)
    return TensorInfo(name=name, shape=shape, dtype="float32", num_bytes=4 * int(np.prod(shape)))


def draw_inputs(micro_batch: int) -> Tensors:
    """Return the input and the target of a micro-batch."""
    rng = np.random.default_rng([7, micro_batch])
    return {
        name: torch.from_numpy(rng.standard_normal((ROWS, WIDTH)).astype(np.float32))
        for name in ("h0", "target")
    }


def reference(num_stages: int, num_micro_batches: int) -> tuple[dict[int, float], dict[str, np.ndarray]]:
    """Return losses and mean gradients, by `stage/weight`, of the uncut chain."""
    layers = [Layer(number, num_stages) for number in range(num_stages)]
    losses = {}
    for micro_batch in range(num_micro_batches):
        known = draw_inputs(micro_batch)
        x, skip = layers[0](known["h0"])
        for layer in layers[1:-1]:
            (x,) = layer(x)
        (x,) = layers[-1](x, skip)
        loss = _loss(micro_batch, {**known, f"h{num_stages}": x})
        losses[micro_batch] = loss.item()
        (loss / num_micro_batches).backward()
    return losses, {
        f"{number}/{name}": weight.grad.numpy()
        for number, layer in enumerate(layers)
        for name, weight in layer.named_parameters()
    }


def _loss(micro_batch: int, known: Tensors) -> torch.Tensor:
    last = max((name for name in known if name.startswith("h")), key=lambda name: int(name[1:]))
    return (known[last] - known["target"]).square().mean() * (1 + micro_batch)

"""Programs of our own zoo, predicted as fused kernels, beside what NeuSight's authors measured compiled.

Their labels named `fusion` are the same networks run through torch.compile. Ours come from the zoo's Relax
functions, layer by layer, with no knowledge of theirs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cost_model.gpu.devices import GpuDevice, find_gpu
from cost_model.gpu.kernel_model import GpuKernelModel
from tuner import frontend
from tuner.stages import cut_between, layers_of
from tuner.tuning.stage_costs.predict_stages import predict_stages

_LABEL = re.compile(r"(?P<model>\w+?)_(?P<size>\w+)-inf-(?P<length>\d+)-(?P<batch>\d+)-fusion\.json")
_MODELS = {"bert": "bert", "gpt2": "gpt2"}


class _Measured(NamedTuple):
    device: GpuDevice
    model: str
    length: int
    batch: int
    latency_ms: float


def print_programs(root: Path, model: GpuKernelModel) -> None:
    """Print a row for each measured network that the zoo has, and the mean absolute error."""
    print("\n| device | network | length × batch | measured, compiled | predicted | interval | error |")
    print("|---|---|---|---|---|---|---|")
    errors, covered = [], 0
    for found in sorted(_measured(root), key=lambda each: (each.model, each.length, each.batch)):
        latency_ms, low_ms, high_ms = _predicted_ms(found, model)
        errors.append(abs(latency_ms / found.latency_ms - 1))
        covered += low_ms <= found.latency_ms <= high_ms
        print(
            f"| {found.device.name} | {found.model} | {found.length} × {found.batch} "
            f"| {found.latency_ms:.1f} ms | {latency_ms:.1f} ms | {low_ms:.0f} to {high_ms:.0f} ms "
            f"| {latency_ms / found.latency_ms - 1:+.1%} |"
        )
    if errors:
        print(
            f"\nmean absolute error {sum(errors) / len(errors):.1%}, {covered} of {len(errors)} in intervals"
        )


def _measured(root: Path) -> Iterator[_Measured]:
    for path in sorted(root.glob("label/*/*-fusion.json")):
        named = _LABEL.fullmatch(path.name)
        if named is None or named["model"] not in _MODELS or path.parent.name.startswith("AMD"):
            continue
        yield _Measured(
            device=find_gpu(path.parent.name),
            model=f"{_MODELS[named['model']]}:{named['size']}",
            length=int(named["length"]),
            batch=int(named["batch"]),
            latency_ms=json.loads(path.read_bytes())["e2e_latency"],
        )


def _predicted_ms(found: _Measured, kernel_model: GpuKernelModel) -> tuple[float, float, float]:
    """Return the latency of all layers one after another, and its interval if they err together."""
    shape = (found.batch, found.length)
    model = frontend.load_model(found.model, shapes={"input_ids": shape}, batch=found.batch, training=False)
    layers = layers_of(model)
    cuts = cut_between(layers, range(1, len(layers)))
    stages = predict_stages(model, cuts, kernel_model, found.device).stages
    figures = [stage.forward for stage in stages]
    ends = [figure.interval_us or (figure.latency_us, figure.latency_us) for figure in figures]
    low_us, high_us = map(sum, zip(*ends, strict=True))
    return sum(figure.latency_us for figure in figures) / 1e3, low_us / 1e3, high_us / 1e3

"""The networks that NeuSight's authors measured: their operators' kernels, measured and predicted latencies.

Their `label` folder holds what was measured on each GPU, `results/opgraph` the kernels of each network's
operators, `results/prediction` what four systems predicted. Networks of repeated blocks list one block; the
number of blocks is in the label.
"""

from __future__ import annotations

import ast
import csv
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cost_model.gpu.kernels import Family, GpuKernel, kernel_of
from records.files.neusight import kernel_workload

UNSEEN_MODELS = frozenset(("gpt3_27", "opt_13", "gpt3_xl"))
UNSEEN_DEVICES = frozenset(("NVIDIA_H100_80GB_HBM3", "NVIDIA_L4", "NVIDIA_A100_80GB_PCIe"))
"""What their tables call out of distribution."""

_BLOCKS = {
    "bert": ("bert_encoder_layer_0_attention_self_query", "bert_encoder_layer_0_output_layer_norm"),
    "gpt": ("transformer_h_0_ln_1", "add_15"),
    "opt": ("model_decoder_layers_0_self_attn_layer_norm", "view_11"),
}
"""First and last operator of the block that is repeated."""

_BYTES = 4
COLUMNS = {
    "BMM": Family.BATCHED_PRODUCT,
    "Linear": Family.LINEAR,
    "VEC": Family.ELEMENTWISE,
    "VECsoftmax": Family.SOFTMAX,
    "VECln": Family.LAYER_NORM,
}
"""Their kinds of operators; each is a column of the table."""


@dataclass(frozen=True)
class Call:
    """One kernel of an operator: a kernel, or the bytes of a plain copy."""

    kernel: GpuKernel | None
    copied_bytes: int = 0


@dataclass(frozen=True)
class NetworkOperator:
    """One row of a network's graph: its name, its column or None, its kernels, and how often it occurs."""

    name: str
    column: str | None
    calls: tuple[Call, ...]
    count: int


@dataclass(frozen=True)
class NetworkRun:
    """One network that was run on one device.

    Attributes:
        root: their folder `scripts/asplos`.
        device: as their folders name it.
        description: model, mode, sequence length and batch, joined by hyphens.
        measured_ms: whole latency.
        num_layers: blocks.
    """

    root: Path
    device: str
    description: str
    measured_ms: float
    num_layers: int

    @property
    def model(self) -> str:
        """Name of the network."""
        return self.description.split("-")[0]

    @property
    def trains(self) -> bool:
        """Whether the backward pass is part of it."""
        return self.description.split("-")[1] == "train"

    @property
    def is_unseen(self) -> bool:
        """Whether their tables count it as out of distribution."""
        return self.model in UNSEEN_MODELS or self.device in UNSEEN_DEVICES

    @cached_property
    def operators(self) -> tuple[NetworkOperator, ...]:
        """The network's operators."""
        rows = _rows(self.root / "results/opgraph" / f"{self.description}.csv")
        counts = self._counts([row["Name"] for row in rows])
        return tuple(
            NetworkOperator(
                row["Name"], _column(row["OpName"]), tuple(_calls(row, trains=self.trains)), count
            )
            for row, count in zip(rows, counts, strict=True)
        )

    def measured_by_column(self) -> dict[str, float]:
        """Return milliseconds by column; empty where the operators' latencies are not there."""
        path = self.root / "label" / self.device / f"{self.description}.csv"
        if not path.exists():
            return {}
        columns = {operator.name: operator.column for operator in self.operators}
        return self._sums(_rows(path), "latency", lambda row: columns.get(row["Name"]))

    def measured_by_operator(self) -> dict[str, float]:
        """Return milliseconds of one occurrence of each operator; empty where they are not there."""
        path = self.root / "label" / self.device / f"{self.description}.csv"
        return {row["Name"]: float(row["latency"] or 0) for row in _rows(path)} if path.exists() else {}

    def predicted_by_column(self, system: str) -> dict[str, float]:
        """Return milliseconds by column that one of their systems predicted; empty where it did not."""
        path = self._prediction(system, "csv")
        return (
            self._sums(_rows(path), "e2e_latency", lambda row: _column(row["OpName"]))
            if path.exists()
            else {}
        )

    def predicted_ms(self, system: str) -> float | None:
        """Return the whole latency that one of their systems predicted."""
        path = self._prediction(system, "json")
        return float(json.loads(path.read_text())["e2e_latency"]) if path.exists() else None

    def _prediction(self, system: str, suffix: str) -> Path:
        return self.root / "results/prediction" / self.device / system / f"{self.description}.{suffix}"

    def _sums(
        self, rows: list[dict[str, str]], field: str, column_of: Callable[[dict[str, str]], str | None]
    ) -> dict[str, float]:
        sums: dict[str, float] = {}
        for row, count in zip(rows, self._counts([row["Name"] for row in rows]), strict=True):
            column = column_of(row)
            if column:
                sums[column] = sums.get(column, 0.0) + count * float(row[field] or 0)
        return sums

    def _counts(self, names: list[str]) -> list[int]:
        if "switch" in self.model or not self.num_layers:
            return [1] * len(names)
        first, last = next(ends for key, ends in _BLOCKS.items() if key in self.model)
        block = range(names.index(first), names.index(last) + 1)
        return [self.num_layers if index in block else 1 for index in range(len(names))]


def network_runs(root: Path) -> Iterator[NetworkRun]:
    """Yield the runs on one NVIDIA GPU that were measured and that NeuSight predicted.

    Args:
        root: their folder `scripts/asplos`.
    """
    for label in sorted((root / "label").glob("*/*.json")):
        if "AMD" in label.parent.name or len(label.stem.split("-")) != 4:
            continue
        said = json.loads(label.read_text())
        run = NetworkRun(
            root, label.parent.name, label.stem, float(said["e2e_latency"]), int(said["num_layer"] or 0)
        )
        if run.predicted_ms("neusight") is not None:
            yield run


def _column(name: str) -> str | None:
    if name in COLUMNS:
        return name
    return "VEC" if name.startswith("VEC") else None


def _calls(row: dict[str, str], *, trains: bool) -> Iterator[Call]:
    """Yield the kernels of a row.

    The backward pass of an addition is none: the gradient is handed on as it is.
    """
    phases = ("FwOps", "BwOps", "AccOps") if trains else ("FwOps",)
    for phase in phases:
        for name, extents in ast.literal_eval(row[phase]):
            if name == "MEM":
                if not (phase == "BwOps" and row["OpName"] == "VECadd"):
                    yield Call(None, _BYTES * sum(math.prod(shape) for shape in extents))
            elif name == "BMM":
                yield Call(kernel_of(kernel_workload("bmm", tuple(extents))))
            elif name == "Linear":
                yield Call(kernel_of(kernel_workload("linear", (1, *extents))))
            elif name.startswith("VEC"):
                yield Call(
                    _vector_kernel(
                        name.removeprefix("VEC"), tuple(extents), row if phase == "FwOps" else None
                    )
                )


def _vector_kernel(name: str, extents: tuple[int, int], row: dict[str, str] | None) -> GpuKernel:
    kernel = kernel_of(kernel_workload(name, extents))
    if row is None:
        return kernel
    shapes = (*ast.literal_eval(row["InputShapes"]), ast.literal_eval(row["OutputShape"]))
    return kernel._replace(num_bytes=_BYTES * sum(math.prod(shape) for shape in shapes))


def _rows(path: Path) -> list[dict[str, str]]:
    csv.field_size_limit(2**27)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))

"""Profiles of Metis: `DeviceType.GPU_tpT_bsB.json`, whose times are of forward and backward together.

Files that lie beside and differ in degree and batch size alone belong to the same profile. What the format
does not say is assumed, and noted: a backward takes twice as long as its forward; a layer saves what it holds
beyond weights, gradients and Adam's two moments, each as large as the weights. The optimizer's time is shared
out by weights. Checked in tests/benchmarks/profile_readers/test_readers.py.

Source: Metis (Um et al., USENIX ATC 2024), github.com/SamsungLabs/Metis, README.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.profile_readers.reading import Reading
from tessel.documents import read_document
from tessel.errors import ScheduleError
from tessel.names import name_of_path
from tessel.profiles.figures import MIB, decode_json, make_cost, read_count, read_number, refusal
from tessel.profiles.profile import CostTable, Layer, Profile

FORWARD_SHARE = 1 / 3
"""Of forward and backward together: the backward of a matrix product is two products."""

TENSORS_OF_ADAM = 4
"""Weights, gradients and two moments."""

_NAME = re.compile(r"DeviceType\.(?P<device>.+)_tp(?P<degree>\d+)_bs(?P<batch>\d+)\.json")


class _Parameters(msgspec.Struct):
    parameters_per_layer_bytes: list[float]
    activation_parameters_bytes: list[float] | None = None
    activation_paramters_bytes: list[float] | None = None


class _Model(msgspec.Struct):
    model_name: str
    num_layers: int
    parameters: _Parameters


class _Times(msgspec.Struct):
    layer_compute_total_ms: list[float]
    optimizer_time_ms: float = 0.0


class _Memory(msgspec.Struct):
    layer_memory_total_mb: list[float]


class _Document(msgspec.Struct):
    model: _Model
    execution_time: _Times
    execution_memory: _Memory


def read(path: Path, text: bytes) -> Reading:
    """Read a file and those beside it of the same device.

    Raises:
        DocumentError: it is none; the message names the layer and what to do.
    """
    own = _NAME.fullmatch(path.name)
    if own is None:
        raise refusal(path, "", "its name does not say the batch size", "name it DeviceType.GPU_tpT_bsB.json")
    document = decode_json(text, _Document, path)
    tables = [_table(path, document, own)]
    for beside in sorted(path.parent.iterdir()):
        match = _NAME.fullmatch(beside.name)
        if match is not None and match["device"] == own["device"] and beside.name != path.name:
            tables.append(_table(beside, decode_json(read_document(beside), _Document, beside), match))
    parameters = document.model.parameters
    notes = [
        "forwards are taken to be a third of forward and backward together",
        "what a layer saves is taken to be its memory beyond weights, gradients and Adam's two moments",
    ]
    if parameters.activation_parameters_bytes is None and parameters.activation_paramters_bytes is None:
        notes.append("the bytes between layers are unknown and count as 0")
    try:
        return Reading(
            Profile(
                name=document.model.model_name,
                device=name_of_path(own["device"]),
                layers=tuple(Layer(f"layer{index}") for index in range(len(tables[0].costs))),
                tables=tuple(sorted(tables, key=lambda table: (table.micro_batch, table.tensor_parallel))),
                notes=tuple(notes),
            )
        )
    except ScheduleError as error:
        raise refusal(path, "", error, "profile all in the same way") from error


def _table(path: Path, document: _Document, name: re.Match[str]) -> CostTable:
    parameters = document.model.parameters
    times = document.execution_time.layer_compute_total_ms
    weights = parameters.parameters_per_layer_bytes
    memory = document.execution_memory.layer_memory_total_mb
    boundaries = parameters.activation_parameters_bytes or parameters.activation_paramters_bytes
    columns: dict[str, Sequence[float]] = {
        "layer_compute_total_ms": times,
        "parameters_per_layer_bytes": weights,
        "layer_memory_total_mb": memory,
        "activation_parameters_bytes": boundaries or [0.0] * len(times),
    }
    for column, values in columns.items():
        if len(values) != len(times):
            raise refusal(
                path, column, f"it has {len(values)} figures for {len(times)} layers", "give each layer one"
            )
        for index, value in enumerate(values):
            read_number(value, path, f"{column}, layer {index}")
    update_us = read_number(document.execution_time.optimizer_time_ms, path, "optimizer_time_ms") * 1e3
    total = sum(weights)
    return CostTable(
        micro_batch=read_count(name["batch"], path, "bs"),
        tensor_parallel=read_count(name["degree"], path, "tp"),
        costs=tuple(
            make_cost(
                {
                    "forward_us": times[index] * 1e3 * FORWARD_SHARE,
                    "backward_us": times[index] * 1e3 * (1 - FORWARD_SHARE),
                    "update_us": update_us * weights[index] / total if total else 0.0,
                    "weight_bytes": weights[index],
                    "saved_bytes": max(0.0, memory[index] * MIB - TENSORS_OF_ADAM * weights[index]),
                    "boundary_bytes": columns["activation_parameters_bytes"][index],
                },
                path,
                f"layer {index}",
            )
            for index in range(len(times))
        ),
    )

"""Profiles of Aceso: `MODEL_mbsN_tpT_algoR.csv`, the operators of one block with those before and after it.

    op_name,forward-compute,backward-compute,input_size,output_size,weights,activations,fwd_reserved,bwd_reserved

Times are microseconds and sizes MiB, of one micro-batch. The operators between the embedding and the head
make up one block, of which the model has as many as `NUM_BLOCKS` or the caller says. Files that lie beside
and differ in the micro-batch size alone belong to the same profile. Operators are timed alone: with a
tensor-parallel degree above 1 their collectives are left out, which is why degrees are not mixed.
Checked in tests/benchmarks/profile_readers/test_readers.py.

Source: Aceso (Liu et al., EuroSys 2024), its profiler as in github.com/eth-easl/sailor; `op_profiler.py`
writes 10 000 000 for what did not fit.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.profile_readers.reading import Reading
from tessel.documents import read_document
from tessel.errors import ScheduleError
from tessel.names import name_of_path
from tessel.profiles.figures import MIB, make_cost, read_count, read_number, refusal
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts

COLUMNS = (
    "op_name",
    "forward-compute",
    "backward-compute",
    "input_size",
    "output_size",
    "weights",
    "activations",
    "fwd_reserved",
    "bwd_reserved",
)

NUM_BLOCKS = {"GPT-Neo-2.7": 32, "OPT-350": 24, "OPT-30": 48}
"""Blocks of the models that Sailor profiled with it."""

FAILED = 1e7
"""What the profiler writes for an operator that did not fit."""

_NAME = re.compile(r"(?P<model>.+)_mbs(?P<micro_batch>\d+)_tp(?P<degree>\d+)_algo(?P<algorithm>\d+)\.csv")

_BLOCK_PREFIX = "enc-"


def read(path: Path, text: bytes) -> Reading:
    """Read a file and those beside it of the same model, degree and algorithm.

    Raises:
        DocumentError: it is none; the message names the row and what to do.
    """
    own = _NAME.fullmatch(path.name)
    if own is None:
        raise refusal(
            path, "", "its name does not say the micro-batch size", "name it MODEL_mbsN_tpT_algoR.csv"
        )
    tables = [_table(path, text, own)]
    for beside in sorted(path.parent.iterdir()):
        match = _NAME.fullmatch(beside.name)
        if match is None or beside.name == path.name or not beside.is_file():
            continue
        if all(match[key] == own[key] for key in ("model", "degree", "algorithm")):
            other = read_document(beside)
            if not _has_failed(beside, other):
                tables.append(_table(beside, other, match))
    notes = ["times are of operators run alone, saved activations of what the forward left allocated"]
    if int(own["degree"]) > 1:
        notes.append("the collectives of tensor parallelism are not in these times")
    blocks = NUM_BLOCKS.get(own["model"])
    try:
        profile = Profile(
            name=name_of_path(own["model"]),
            device=name_of_path(path.absolute().parent.parent.name),
            layers=(Layer("embedding"), Layer("block0"), Layer("head")),
            tables=tuple(sorted(tables, key=lambda table: table.micro_batch)),
            notes=tuple(notes),
        )
    except ScheduleError as error:
        raise refusal(path, "", error, "check the files beside it") from error
    if blocks is None:
        return Reading(profile, says_num_layers=False)
    return Reading(profile.with_num_layers(blocks + 2))


def _rows(path: Path, text: bytes) -> list[tuple[str, Mapping[str, str]]]:
    """Return each row's place and its fields by column.

    Raises:
        DocumentError: columns are missing, or a row has too few fields.
    """
    try:
        lines = list(csv.reader(text.decode().splitlines(), strict=True))
    except csv.Error as error:
        raise refusal(path, "", f"it is no CSV file, {error}", "profile it again") from error
    header = lines[0] if lines else []
    missing = next((name for name in COLUMNS if name not in header), None)
    if missing is not None:
        raise refusal(path, "row 1", f"the column {missing} is missing", "profile it again")
    found: list[tuple[str, Mapping[str, str]]] = []
    for number, line in enumerate(lines[1:], 2):
        if line and len(line) != len(header):
            raise refusal(
                path, f"row {number}", f"it has {len(line)} fields of {len(header)}", "profile it again"
            )
        if line:
            found.append((f"row {number}", dict(zip(header, line, strict=True))))
    return found


def _has_failed(path: Path, text: bytes) -> bool:
    """Return whether an operator did not fit, so that the file says nothing."""
    return any(read_number(row["forward-compute"], path, place) >= FAILED for place, row in _rows(path, text))


def _table(path: Path, text: bytes, name: re.Match[str]) -> CostTable:
    rows = _rows(path, text)
    inner = [index for index, (_, row) in enumerate(rows) if row["op_name"].startswith(_BLOCK_PREFIX)]
    if not inner or inner[0] == 0 or inner[-1] == len(rows) - 1:
        raise refusal(
            path,
            "",
            f"it has no operators {_BLOCK_PREFIX}… with an embedding before and a head behind them",
            "profile a whole model",
        )
    groups = (rows[: inner[0]], rows[inner[0] : inner[-1] + 1], rows[inner[-1] + 1 :])
    return CostTable(
        micro_batch=read_count(name["micro_batch"], path, "mbs"),
        tensor_parallel=read_count(name["degree"], path, "tp"),
        costs=tuple(_cost(path, group) for group in groups),
    )


def _cost(path: Path, rows: Sequence[tuple[str, Mapping[str, str]]]) -> StageCosts:
    """Return the cost of operators that run one after another."""
    values = [
        {
            column: read_number(row[column], path, f"{place}, {column}")
            for column in COLUMNS
            if column != "op_name"
        }
        for place, row in rows
    ]
    for (place, row), value in zip(rows, values, strict=True):
        if max(value["forward-compute"], value["backward-compute"]) >= FAILED:
            raise refusal(path, place, f"{row['op_name']} did not fit", "take a smaller micro-batch size")
    return make_cost(
        {
            "forward_us": sum(value["forward-compute"] for value in values),
            "backward_us": sum(value["backward-compute"] for value in values),
            "weight_bytes": sum(value["weights"] for value in values) * MIB,
            "saved_bytes": sum(value["activations"] for value in values) * MIB,
            "peak_bytes": max(map(_peak_mib, values)) * MIB,
            "boundary_bytes": values[-1]["output_size"] * MIB,
        },
        path,
        rows[0][0],
    )


def _peak_mib(value: Mapping[str, float]) -> float:
    """Return what an operator reserves while it runs, less the weights' gradients, which stay."""
    return max(value["fwd_reserved"], value["bwd_reserved"] - value["weights"])

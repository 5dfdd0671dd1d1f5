"""Labels of NeuSight: `MODEL-train-LENGTH-BATCH.csv`, the measured operators of one block and around it.

The JSON file of the same name beside it says how many blocks the network has. Times are milliseconds. Only
operators that have a backward count: the rest are views, sizes and constants, whose rows hold the launch of
nothing; with them, the forward of GPT-3 2.7B on an H100 comes out 5.6 % above the measured whole, without
0.6 %. Bytes are derived from shapes: weights of linear and normalization modules and of plain parameters as
they are, of token embeddings as the head's (which shares them in these models); every output with a backward
is saved.
Checked in tests/benchmarks/profile_readers/test_readers.py.

Source: NeuSight (Lee et al., ASPLOS 2025), github.com/sitar-lab/NeuSight, scripts/asplos/label.
"""

from __future__ import annotations

import csv
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.profile_readers.reading import Reading
from tessel.documents import read_document
from tessel.errors import ScheduleError
from tessel.names import name_of_path
from tessel.profiles.figures import decode_json, make_cost, read_count, read_number, refusal
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts

COLUMNS = (
    "op",
    "target",
    "meta",
    "input_shapes",
    "fw_latency",
    "bw_latency",
    "acc_latency",
    "output_shape",
    "dtype",
)

TIE = "embedding"

_NAME = re.compile(r"(?P<model>.+)-(?P<mode>train|inf)-\d+-(?P<batch>\d+)(?P<variant>-.+)?")
_BLOCK = re.compile(r"(?<![\w.])([\w.]+\.(?:h|layer|layers|block|blocks)\.\d+)")
_CLASS = re.compile(r"<class '([\w.]+)'>")
_BYTES_BY_TYPE = {"torch.float32": 4, "torch.float16": 2, "torch.bfloat16": 2, "torch.float64": 8}


class _Whole(msgspec.Struct):
    num_layer: int


@dataclass(frozen=True, slots=True)
class _Row:
    """One operator: where it stands, the block it is of, times in us, and the shapes around it."""

    place: str
    op: str
    target: str
    block: str
    module: str
    forward_us: float
    backward_us: float
    accumulation_us: float
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    element_bytes: int

    @property
    def output_bytes(self) -> int:
        return math.prod(self.output) * self.element_bytes


def read(path: Path, text: bytes) -> Reading:
    """Read a label, given by its CSV file or the JSON file beside.

    Raises:
        DocumentError: it is none; the message names the row and what to do.
    """
    table, whole = path.with_suffix(".csv"), path.with_suffix(".json")
    name = _NAME.fullmatch(path.stem)
    if name is None or name["mode"] != "train" or name["variant"]:
        raise refusal(
            path, "", "its name is not of one network in training", "take a file MODEL-train-LENGTH-BATCH.csv"
        )
    rows = _rows(table, text if path == table else read_document(table))
    groups = _groups(rows, table)
    vocabulary = max(
        (row.output[-1] for row in groups[2] if row.module == "Linear" and row.output), default=0
    )
    costs = [_cost(group, vocabulary, table) for group in groups]
    notes = (
        "weights and saved activations are derived from the shapes of operators",
        "the head is taken to share the weights of the embedding",
    )
    try:
        profile = Profile(
            name=name_of_path(name["model"]),
            device=name_of_path(path.absolute().parent.name),
            layers=(Layer("embedding", TIE), Layer("block0"), Layer("head", TIE)),
            tables=(
                CostTable(
                    micro_batch=read_count(name["batch"], path, "the batch size of its name"),
                    tensor_parallel=1,
                    costs=tuple(costs),
                ),
            ),
            notes=notes,
        )
    except ScheduleError as error:
        raise refusal(path, "", error, "take another label") from error
    if not whole.is_file():
        return Reading(profile, says_num_layers=False)
    count = decode_json(text if path == whole else read_document(whole), _Whole, whole).num_layer
    blocks = read_count(count, whole, "num_layer")
    return Reading(profile.with_num_layers(blocks + 2))


def _rows(path: Path, text: bytes) -> list[_Row]:
    """Return the operators.

    Raises:
        DocumentError: columns are missing, or a figure cannot be used.
    """
    try:
        reader = csv.DictReader(text.decode().splitlines(), strict=True)
        missing = next((name for name in COLUMNS if name not in (reader.fieldnames or ())), None)
        if missing is not None:
            raise refusal(
                path, "row 1", f"the column {missing} is missing", "take the label as it was published"
            )
        return [_row(row, path, f"row {number}") for number, row in enumerate(reader, 2)]
    except csv.Error as error:
        raise refusal(
            path, "", f"it is no CSV file, {error}", "take the label as it was published"
        ) from error


def _row(row: Mapping[str, str | None], path: Path, place: str) -> _Row:
    values = {name: row[name] or "" for name in COLUMNS}
    block = _BLOCK.search(values["meta"]) or _BLOCK.match(values["target"])
    modules = _CLASS.findall(values["meta"])
    times = [
        read_number(values[name], path, f"{place}, {name}") * 1e3
        for name in ("fw_latency", "bw_latency", "acc_latency")
    ]
    return _Row(
        place=place,
        op=values["op"],
        target=values["target"],
        block=block[1] if block else "",
        module=modules[-1].rpartition(".")[2] if modules and values["op"] == "call_module" else "",
        forward_us=times[0],
        backward_us=times[1],
        accumulation_us=times[2],
        inputs=_shapes(values["input_shapes"], path, place),
        output=(_shapes(values["output_shape"], path, place) or ((),))[0],
        element_bytes=_BYTES_BY_TYPE.get(values["dtype"], 0),
    )


_MAX_EXTENT = 10**9


def _shapes(text: str, path: Path, place: str) -> tuple[tuple[int, ...], ...]:
    """Return the shapes that a text such as `[[1, 1024], [1]]` or `(1, 1024)` holds."""
    found = []
    for inner in re.findall(r"[\[(]([\d,\s]*)[\])]", text):
        extents = tuple(int(each[:12]) for each in re.findall(r"\d+", inner, re.ASCII))
        if any(extent > _MAX_EXTENT for extent in extents):
            raise refusal(
                path, place, f"the extent {max(extents)} is implausible", "take the label as it was published"
            )
        found.append(extents)
    return tuple(found)


def _groups(rows: Sequence[_Row], path: Path) -> tuple[list[_Row], list[_Row], list[_Row]]:
    """Return the operators before, in and behind the block, those that have a backward and parameters alone.

    Raises:
        DocumentError: there is no block, or more than one.
    """
    blocks = sorted({row.block for row in rows if row.block})
    if len(blocks) != 1:
        found = (
            f"it has the blocks {', '.join(blocks[:4])}"
            if blocks
            else "it has no block such as transformer.h.0"
        )
        raise refusal(path, "", found, "take a label of one repeated block")
    inner = [index for index, row in enumerate(rows) if row.block]
    counted = [
        [row for row in group if row.backward_us > 0 or row.op == "get_attr"]
        for group in (rows[: inner[0]], rows[inner[0] : inner[-1] + 1], rows[inner[-1] + 1 :])
    ]
    if not all(any(row.backward_us > 0 for row in group) for group in counted):
        raise refusal(
            path, "", "operators before, in or behind the block have no backward", "take a label of training"
        )
    return counted[0], counted[1], counted[2]


def _cost(rows: Sequence[_Row], vocabulary: int, path: Path) -> StageCosts:
    """Return the cost of operators that run one after another."""
    ran = [row for row in rows if row.backward_us > 0]
    return make_cost(
        {
            "forward_us": sum(row.forward_us for row in ran),
            "backward_us": sum(row.backward_us + row.accumulation_us for row in ran),
            "weight_bytes": min(sum(_weight_bytes(row, vocabulary) for row in rows), sys.maxsize),
            "saved_bytes": min(sum(row.output_bytes for row in ran), sys.maxsize),
            "boundary_bytes": min(ran[-1].output_bytes, sys.maxsize),
        },
        path,
        ran[-1].place,
    )


def _weight_bytes(row: _Row, vocabulary: int) -> int:
    """Return the bytes of an operator's own weights, as its shapes show them."""
    width = row.output[-1] if row.output else 0
    if row.op == "get_attr":
        return row.output_bytes
    if row.module == "Linear" and row.inputs and row.inputs[0]:
        return (row.inputs[0][-1] + 1) * width * row.element_bytes
    if row.module == "LayerNorm":
        return 2 * width * row.element_bytes
    if row.module == "Embedding":
        is_of_positions = re.search(r"wpe|position|token_type", row.target) is not None
        extent = row.output[-2] if is_of_positions and len(row.output) > 1 else vocabulary
        return extent * width * row.element_bytes
    return 0

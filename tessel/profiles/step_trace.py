"""Traces of training steps: what each block of each micro-batch took, on every worker, in which order.

A row is one operation of one worker: `dp_rank, stage, step, optype, start_ts, duration, mb_id`, times in
seconds; `gmc`, the stage of the model where a worker has several (chunks), and `seq_id` may be left out.
`forward-compute` and `backward-compute` are what is replayed. A `…-recv` gives the time of a transfer: from
when both sides were ready to when it ended; what was waited before that is no transfer. Where a worker has
several chunks transfers count nothing, as rows do not say whose they are. All other operations (collectives,
optimizer) only count into what a step took in whole.

The files are CSV, gzipped or not, or parquet where `pyarrow` is installed. Checked in
tests/tessel/profiles/test_step_trace.py.

Source: Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025),
section 3, whose published traces have these columns; the transfer's definition is theirs.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import os
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from records.output import io_reason, io_remedy
from tessel.errors import DocumentError, shown
from tessel.orders import Orders, Task
from tessel.placement import Block, BlockKind, Edge, Placement

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

MAX_BYTES = 2**30
"""Largest trace that is read, uncompressed: some ten million operations."""

MAX_OPERATIONS = 10**7
"""Most computations that a trace may announce by its largest numbers."""

NEEDED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "mb_id")
"""Columns that a trace has to have."""

COMPUTE = ("forward-compute", "backward-compute")
"""What is replayed."""


@dataclass(frozen=True, eq=False)
class StepTrace:
    """Steps of a pipeline as they ran; all replicas and steps have the same stages and micro-batches.

    Attributes:
        placement: chain of forwards `f0, f1, …` and backwards `b0, b1, …`, spans and lags 0: they differ.
        steps: their numbers in the training run.
        replicas: data-parallel ranks.
        spans_s: float64, shape (steps, replicas, micro-batches, blocks), seconds.
        lags_s: float64, shape (steps, replicas, micro-batches, edges), seconds.
        pipeline_s: float64, shape (steps, replicas): from the first block's start to the last one's end.
        step_s: float64, shape (steps,): from the first operation's start to the last one's end.
        orders: the distinct orders of a replica's devices.
        order_of: int64, shape (steps, replicas), which of them.
        notes: what the trace leaves open.
    """

    name: str
    placement: Placement
    steps: tuple[int, ...]
    replicas: tuple[int, ...]
    spans_s: FloatArray
    lags_s: FloatArray
    pipeline_s: FloatArray
    step_s: FloatArray
    orders: tuple[Orders, ...]
    order_of: IntArray
    notes: tuple[str, ...] = ()

    @property
    def micro_batches(self) -> int:
        """Of one replica in one step."""
        return int(self.spans_s.shape[2])

    @property
    def stages(self) -> int:
        """Stages of the model."""
        return int(self.spans_s.shape[3]) // 2

    @cached_property
    def stage_of_block(self) -> IntArray:
        """The stage of each block; int64, shape (blocks,)."""
        return np.tile(np.arange(self.stages), 2)


def read_step_trace(path: str | os.PathLike[str]) -> StepTrace:
    """Read a trace.

    Raises:
        DocumentError: the file cannot be read or is no such trace; the message names the row or the block.
    """
    file = Path(path)
    columns = _columns_of_parquet(file) if file.suffix == ".parquet" else _columns_of_csv(file)
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise DocumentError(
            f"{file} has no column {missing[0]}, and a trace of steps has {', '.join(NEEDED)}; add it"
        )
    return trace_of_columns(file, columns)


def chain_placement(device_of_stage: Sequence[int]) -> Placement:
    """Return stages in a chain, forwards first, all spans 0."""
    stages = range(len(device_of_stage))
    blocks = [
        Block(name=f"{letter}{stage}", kind=kind, devices=(device_of_stage[stage],), span=0)
        for letter, kind in (("f", BlockKind.FORWARD), ("b", BlockKind.BACKWARD))
        for stage in stages
    ]
    edges = [Edge(f"f{stage}", f"f{stage + 1}") for stage in stages[:-1]]
    edges += [Edge(f"b{stage + 1}", f"b{stage}") for stage in stages[:-1]]
    edges += [Edge(f"f{stage}", f"b{stage}") for stage in stages]
    return Placement(devices=max(device_of_stage) + 1, blocks=tuple(blocks), edges=tuple(edges))


Columns = Mapping[str, Sequence[object]]
"""Values by column, as text or numbers."""


def _columns_of_csv(file: Path) -> Columns:
    try:
        packed = file.read_bytes()
        text = packed
        if packed[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(packed)) as unpacked:
                text = unpacked.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise DocumentError(f"{file} has more than {MAX_BYTES // 2**20} MiB; give a trace of fewer steps")
        rows = list(csv.reader(io.StringIO(text.decode())))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DocumentError(f"{file} is no whole gzip file ({error}); fetch or write it again") from error
    except OSError as error:
        raise DocumentError(f"{file} cannot be read, {io_reason(error)}; {io_remedy(error)}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DocumentError(f"{file} is no CSV: {shown(error)}; write one row an operation") from error
    if not rows:
        raise DocumentError(f"{file} is empty, and a trace has a row for each operation; record it again")
    width = len(rows[0])
    for number, row in enumerate(rows, 1):
        if len(row) != width:
            raise DocumentError(
                f"{file} has {len(row)} values in row {number} and {width} columns; give every column a value"
            )
    return {name: column[1:] for name, column in zip(rows[0], zip(*rows, strict=True), strict=True)}


def _columns_of_parquet(file: Path) -> Columns:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DocumentError(
            f"{file} is parquet, and no reader is installed; pip install 'tessel-tuner[parquet]', or "
            "convert it to .csv.gz"
        ) from error
    try:
        table = parquet.read_table(file)
    except OSError as error:
        raise DocumentError(f"{file} cannot be read, {io_reason(error)}; {io_remedy(error)}") from error
    except ValueError as error:  # of which pyarrow's own errors are
        raise DocumentError(f"{file} is no parquet file: {shown(error)}; write it again") from error
    return {name: table.column(name).to_pylist() for name in table.column_names}


@dataclass(frozen=True, slots=True, eq=False)
class _Operations:
    """Rows as arrays; replicas and steps as positions among their numbers."""

    step: IntArray
    replica: IntArray
    device: IntArray
    stage: IntArray
    micro_batch: IntArray
    kind: npt.NDArray[np.str_]
    start: FloatArray
    end: FloatArray


def trace_of_columns(file: Path, columns: Columns) -> StepTrace:
    """Return the steps of a table's columns.

    Raises:
        DocumentError: a figure is none, or a block is missing or stands there twice.
    """
    kinds = np.array([str(each) for each in columns["optype"]])
    is_compute = np.isin(kinds, COMPUTE)
    if not is_compute.any():
        found = ", ".join(sorted(set(kinds.tolist()))[:5])
        raise DocumentError(
            f"{shown(file)} has the operations {shown(found)} and none of {' and '.join(COMPUTE)}, which are "
            "replayed; name them so"
        )
    start = _numbers(file, columns, "start_ts")
    duration = _numbers(file, columns, "duration")
    negative = np.flatnonzero(duration < 0)
    if len(negative):
        row = int(negative[0])
        raise DocumentError(
            f"{file} has duration {duration[row]:g} in row {row + 2}; a duration is seconds, at least 0"
        )
    step, replica, device, micro_batch = (
        _whole_numbers(file, columns, name) for name in ("step", "dp_rank", "stage", "mb_id")
    )
    stage = _whole_numbers(file, columns, "gmc") if "gmc" in columns else device
    if (stage[is_compute] < 0).any():
        stage = device
    steps, step_index = np.unique(step, return_inverse=True)
    replicas, replica_index = np.unique(replica, return_inverse=True)
    whole = _Operations(step_index, replica_index, device, stage, micro_batch, kinds, start, start + duration)
    step_s = np.array(
        [
            whole.end[step_index == each].max() - whole.start[step_index == each].min()
            for each in range(len(steps))
        ]
    )
    computed = _taken(whole, is_compute)
    shape = (len(steps), len(replicas), 1 + int(computed.micro_batch.max()), 1 + int(computed.stage.max()))
    spans, starts, ends = _by_block(file, computed, shape, steps, replicas)
    devices = _device_of_stage(file, computed, shape[3])
    _check_ends(file, whole, devices)
    orders, order_of = _orders(starts, devices)
    placement = chain_placement(devices)
    lags, notes = _lags(whole, placement, starts, devices)
    return StepTrace(
        name=file.name,
        placement=placement,
        steps=tuple(steps.tolist()),
        replicas=tuple(replicas.tolist()),
        spans_s=spans,
        lags_s=lags,
        pipeline_s=ends.max(axis=(2, 3)) - starts.min(axis=(2, 3)),
        step_s=step_s,
        orders=orders,
        order_of=order_of,
        notes=notes,
    )


def _numbers(file: Path, columns: Columns, name: str) -> FloatArray:
    try:
        found = np.array(columns[name], dtype=np.float64)
    except (TypeError, ValueError):
        found = np.array([_number_or_nan(each) for each in columns[name]])
    wrong = np.flatnonzero(~np.isfinite(found))
    if len(wrong):
        row = int(wrong[0])
        raise DocumentError(
            f"{file} has {shown(repr(columns[name][row]))} in column {name} of row {row + 2}, which is no "
            "number; correct it"
        )
    return found


def _number_or_nan(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return float("nan")


def _whole_numbers(file: Path, columns: Columns, name: str) -> IntArray:
    found = _numbers(file, columns, name)
    wrong = np.flatnonzero((found != np.round(found)) | (np.abs(found) > MAX_OPERATIONS))
    if len(wrong):
        row = int(wrong[0])
        raise DocumentError(
            f"{file} has {found[row]:g} in column {name} of row {row + 2}; give a whole number"
        )
    return found.astype(np.int64)


def _taken(operations: _Operations, which: npt.NDArray[np.bool_]) -> _Operations:
    names = _Operations.__dataclass_fields__
    return _Operations(*(getattr(operations, name)[which] for name in names))


def _by_block(
    file: Path, computed: _Operations, shape: tuple[int, int, int, int], steps: IntArray, replicas: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return spans, starts and ends by step, replica, micro-batch and block.

    Raises:
        DocumentError: a block of a micro-batch is missing or stands there twice, or a number is negative.
    """
    num_steps, num_replicas, micro_batches, stages = shape
    if min(int(computed.micro_batch.min()), int(computed.stage.min()), int(computed.device.min())) < 0:
        raise DocumentError(
            f"{file} has a computation with a negative mb_id, stage or gmc; number them from 0 on"
        )
    if num_steps * num_replicas * micro_batches * stages * 2 > max(4 * len(computed.start), 1000):
        raise DocumentError(
            f"{file} numbers micro-batches up to {micro_batches - 1} and stages up to {stages - 1}, and has "
            f"only {len(computed.start)} computations; number both from 0 on without gaps"
        )
    block = computed.stage + stages * (computed.kind == COMPUTE[1])
    place = (computed.step, computed.replica, computed.micro_batch, block)
    counts = np.zeros((*shape[:3], 2 * stages), dtype=np.int64)
    np.add.at(counts, place, 1)
    wrong = np.argwhere(counts != 1)
    if len(wrong):
        at_step, at_replica, micro_batch, at_block = wrong[0].tolist()
        times = int(counts[tuple(wrong[0])])
        raise DocumentError(
            f"{file} has the {COMPUTE[at_block // stages]} of stage {at_block % stages} and micro-batch "
            f"{micro_batch} {times} times in step {steps[at_step]} of replica "
            f"{replicas[at_replica]}; a trace has each once, and as many micro-batches in every step and "
            "replica"
        )
    starts, ends = np.zeros(counts.shape), np.zeros(counts.shape)
    starts[place], ends[place] = computed.start, computed.end
    return ends - starts, starts, ends


def _device_of_stage(file: Path, computed: _Operations, stages: int) -> tuple[int, ...]:
    found = []
    for stage in range(stages):
        devices = np.unique(computed.device[computed.stage == stage]).tolist()
        if len(devices) != 1:
            raise DocumentError(
                f"{file} has chunk {stage} on stages {shown(devices)}, and a chunk is on one; correct gmc"
            )
        found += devices
    return tuple(found)


def _check_ends(file: Path, whole: _Operations, devices: Sequence[int]) -> None:
    """Refuse a trace whose last stage sends its forwards on: that of the next one is missing."""
    last = max(devices)
    if devices.count(last) == 1 and ((whole.kind == "forward-send") & (whole.device == last)).any():
        raise DocumentError(
            f"{file} has a forward-send of stage {last}, its last one, and no computation of a stage "
            f"{last + 1}; give the rows of all workers"
        )


def _orders(starts: FloatArray, devices: Sequence[int]) -> tuple[tuple[Orders, ...], IntArray]:
    """Return the distinct orders by start, and which of them each step and replica ran."""
    num_steps, num_replicas = starts.shape[:2]
    device_of_block = np.tile(devices, 2)
    known: dict[bytes, int] = {}
    orders: list[Orders] = []
    order_of = np.zeros((num_steps, num_replicas), dtype=np.int64)
    blocks_of = [np.flatnonzero(device_of_block == device) for device in range(max(devices) + 1)]
    for step in range(num_steps):
        for replica in range(num_replicas):
            own = starts[step, replica]
            ranked = [np.argsort(own[:, blocks].ravel(), kind="stable") for blocks in blocks_of]
            key = b"".join(each.tobytes() for each in ranked)
            if key not in known:
                known[key] = len(orders)
                orders.append(
                    tuple(
                        tuple(
                            Task(int(blocks[place % len(blocks)]), int(place // len(blocks)))
                            for place in own_rank
                        )
                        for blocks, own_rank in zip(blocks_of, ranked, strict=True)
                    )
                )
            order_of[step, replica] = known[key]
    return tuple(orders), order_of


def _lags(
    whole: _Operations, placement: Placement, starts: FloatArray, devices: Sequence[int]
) -> tuple[FloatArray, tuple[str, ...]]:
    """Return the transfers by step, replica, micro-batch and edge, and a note where they cannot be known."""
    num_steps, num_replicas, micro_batches, num_blocks = starts.shape
    lags = np.zeros((num_steps, num_replicas, micro_batches, len(placement.edges)))
    stages = num_blocks // 2
    if max(Counter(devices).values()) > 1:
        return lags, ("a worker has several chunks: transfers count nothing",)
    left_out = 0
    index = placement.index_by_name
    for number, edge in enumerate(placement.edges):
        source, target = index[edge.source], index[edge.target]
        if source % stages == target % stages:
            continue
        kind = "forward" if target < stages else "backward"
        received = _by_turn(whole, f"{kind}-recv", devices[target % stages], starts.shape)
        sent = _by_turn(whole, f"{kind}-send", devices[source % stages], starts.shape)
        if received is None or sent is None:
            left_out += 1
            continue
        transfer = np.maximum(received[1] - np.maximum(received[0], sent[0]), 0.0)
        # the first transfer is of the micro-batch that runs first, and so on
        turn = np.argsort(np.argsort(starts[..., target], axis=2, kind="stable"), axis=2, kind="stable")
        lags[..., number] = np.take_along_axis(transfer, turn, axis=2)
    notes = (f"{left_out} borders have not one transfer a micro-batch; they count nothing",)
    return lags, notes if left_out else ()


def _by_turn(
    whole: _Operations, kind: str, device: int, shape: tuple[int, ...]
) -> tuple[FloatArray, FloatArray] | None:
    """Return starts and ends of a device's transfers by step, replica and turn; None where some miss."""
    chosen = _taken(whole, (whole.kind == kind) & (whole.device == device))
    num_steps, num_replicas, micro_batches = shape[:3]
    counts = np.zeros((num_steps, num_replicas), dtype=np.int64)
    np.add.at(counts, (chosen.step, chosen.replica), 1)
    if (counts != micro_batches).any():
        return None
    order = np.lexsort((chosen.start, chosen.replica, chosen.step))
    return (
        chosen.start[order].reshape(num_steps, num_replicas, micro_batches),
        chosen.end[order].reshape(num_steps, num_replicas, micro_batches),
    )

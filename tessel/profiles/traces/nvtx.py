"""Ranges of NVTX that Nsight Systems projected onto the GPU, or pushed and popped on the CPU, as CSV.

    nsys stats --report nvtx_gpu_proj_trace --format csv job.nsys-rep > job.csv

Names are labels of stages, or of layers with `forward` or `backward` in them
(`tessel.profiles.traces.labels`); `torch.autograd.profiler.emit_nvtx` hands on those of
torch.distributed.pipelining, and `torch.cuda.nvtx` makes any. Processes are taken for ranks, in the order of
their numbers. Times of `nvtx_pushpop_trace` are the CPU's, which launches kernels ahead of them.
Checked in tests/tessel/profiles/traces/test_nvtx.py.

Source: Nsight Systems user guide, reports `nvtx_gpu_proj_trace` and `nvtx_pushpop_trace`.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tessel.names import name_of_path
from tessel.placement import BlockKind
from tessel.profiles.figures import read_number, refusal
from tessel.profiles.traces.labels import Label, parse_label
from tessel.profiles.traces.ranges import Trace, TraceRange, in_order

_REPORT = "nsys stats --report nvtx_gpu_proj_trace --format csv"
_PROJECTED = ("Projected Start (ns)", "Projected Duration (ns)")
_PUSHED = ("Start (ns)", "Duration (ns)")


class _Named(NamedTuple):
    """A range whose name says what it is."""

    process: str
    label: Label
    start_us: float
    duration_us: float


def is_nvtx(header: str) -> bool:
    """Whether the first line of a CSV is that of a report of NVTX ranges, of whichever kind."""
    return "(ns)" in header and ("NVTX" in header or "Name" in header or "Range" in header)


def read_nvtx(path: Path, text: bytes) -> Trace:
    """Read a report of ranges.

    Raises:
        DocumentError: it is none, sums ranges up, or none of its names says a stage or layer.
    """
    lines = text.decode("utf-8-sig").splitlines()
    begin = next((place for place, line in enumerate(lines) if is_nvtx(line)), 0)
    rows = csv.DictReader(io.StringIO("\n".join(lines[begin:])))
    names = rows.fieldnames or ()
    columns = next((each for each in (_PROJECTED, _PUSHED) if set(each) <= set(names)), None)
    if columns is None or not {"Name", "PID"} <= set(names):
        raise refusal(path, "", "it sums NVTX ranges up, or has other columns", f"write it with {_REPORT}")
    found = []
    try:
        for row in rows:
            label = parse_label(row["Name"] or "")
            if label is not None:
                place = f"row {begin + rows.line_num}"
                start, duration = (
                    read_number(row[column], path, f"{place}, {column}") / 1e3 for column in columns
                )
                found.append(_Named(row["PID"] or "", label, start, duration))
    except csv.Error as error:
        raise refusal(path, "", f"it is no CSV file, {error}", f"write it with {_REPORT}") from error
    return _trace(path, found, is_projected=columns == _PROJECTED)


def _trace(path: Path, found: Sequence[_Named], *, is_projected: bool) -> Trace:
    processes = sorted({each.process for each in found}, key=lambda process: (len(process), process))
    rank = {process: number for number, process in enumerate(processes)}
    of_stages = [each for each in found if not each.label.layer and each.label.micro_batch is not None]
    kept = of_stages or [each for each in found if each.label.layer]
    if not kept:
        raise refusal(
            path,
            "",
            "no range's name says a stage and a micro-batch, or a layer, and whether it is a forward",
            "name ranges such as 0F3 (stage, F or B, micro-batch), or 'block7 backward'",
        )
    if of_stages:
        stages = [rank[each.process] if each.label.stage is None else each.label.stage for each in kept]
        names = tuple(f"stage{number}" for number in range(1 + max(stages)))
    else:
        forwards = [each for each in kept if each.label.kind is BlockKind.FORWARD]
        ordered = sorted(forwards, key=lambda each: (rank[each.process], each.start_us))
        names = tuple(dict.fromkeys(each.label.layer for each in (*ordered, *kept)))
        stages = [names.index(each.label.layer) for each in kept]
    counts: Counter[tuple[str, int, BlockKind]] = Counter()
    ranges = []
    for each, stage in sorted(zip(kept, stages, strict=True), key=lambda pair: pair[0].start_us):
        key = (each.process, stage, each.label.kind)
        number = counts[key] if each.label.micro_batch is None else each.label.micro_batch
        counts[key] += 1
        ranges.append(
            TraceRange(rank[each.process], stage, number, each.label.kind, each.start_us, each.duration_us)
        )
    notes = [f"{len(rank)} processes are taken for ranks, in the order of their numbers"]
    if any(each.label.stage is None for each in of_stages):
        notes.append("labels do not name a stage; each rank is taken for the stage of its number")
    if not is_projected:
        notes.append(f"times are the CPU's, which runs ahead of the GPU; write kernels' times with {_REPORT}")
    return Trace(
        name=name_of_path(path.name.partition(".")[0] or "trace"),
        ranges=in_order(ranges),
        stage_names=tuple(map(name_of_path, names)),
        notes=tuple(notes),
    )

"""Layouts planned from measured layers, beside hand-written ways under the same memory.

    python -m benchmarks.whole_plan measure gpt2 benchmarks/whole_plan/models.py:words_256k
    python -m benchmarks.whole_plan plan out/layers/*.json --out out/whole_plan.jsonl

`measure` measures every layer by itself on one thread, its ends also divided over each number of devices, and
writes a document a model into `--folder`; the records make a second run short. `plan` plans each for each
number of devices, two memory limits (parts of what 1F1B holds with its best cut) and micro-batches of P, 2P
and 4P. Ratios are to the plan (above 1: the plan is faster). Links are given: 10 GB/s, 5 us. It ends with
status 1 where some hand-written way is faster than a plan.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from tessel.errors import ScheduleError
from tessel.planning.cluster import Link
from tessel.search import SearchBudget
from tessel.tuned_model.layout_choice import LayoutRequest, choose_layout
from tuner.frontend import load_model
from tuner.plan import LayersPlan
from tuner.tuning import measure_shards
from tuner.tuning.measure_layers import measure_layers
from tuner.tuning.session import SessionSettings, start_session

LINK = Link(bytes_per_s=10e9, latency_us=5.0)

SHARES = (1.02, 0.6)
"""Memory limits, as parts of what the fullest device of 1F1B holds where memory has no limit."""

ROUNDING = 1e-9


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in one case.

    Attributes:
        model: its name.
        devices: all are used.
        share: the memory limit as a part of what 1F1B holds.
        micro_batches: of the step.
        plan: the layout taken, in words; empty where nothing fits.
        step_ms: of the plan.
        gap: how far the plan may be from the best that was allowed, as a share of the bound.
        ratios: steps of the hand-written ways that fit, over the plan's.
        seconds: that planning took.
    """

    model: str
    devices: int
    share: float
    micro_batches: int
    plan: str = ""
    step_ms: float = 0.0
    gap: float = 0.0
    ratios: dict[str, float] = {}
    seconds: float = 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or plan; returns 1 where a hand-written way is faster than a plan."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("models", nargs="+")
    measuring.add_argument("--folder", type=Path, default=Path("out/layers"))
    measuring.add_argument("--records", default="sqlite:///out/records.db")
    measuring.add_argument("--backends", nargs="+", help="those to choose among; every one if left out")
    planning = commands.add_parser("plan")
    planning.add_argument("layers", type=Path, nargs="+")
    planning.add_argument("--work", type=float, default=4.0, help="units of work of each plan")
    planning.add_argument("--out", type=Path, help="file of rows, a line each, written at the end")
    for each in (measuring, planning):
        each.add_argument("--devices", type=int, nargs="+", default=[2, 4, 8])
    options = parser.parse_args(arguments)
    if options.command == "measure":
        _measure(options)
        return 0
    rows = []
    for path in options.layers:
        layers = msgspec.json.decode(path.read_bytes(), type=LayersPlan)
        for row in plan_cases(layers, options.devices, work=options.work):
            rows.append(row)
            print(msgspec.json.encode(row).decode(), file=sys.stderr, flush=True)
    if options.out is not None:
        options.out.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    for line in report(rows):
        print(line)
    return 1 if any(min(row.ratios.values(), default=1.0) < 1 - ROUNDING for row in rows) else 0


def _measure(options: argparse.Namespace) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    link = measure_shards.Link(bytes_per_us=LINK.bytes_per_s / 1e6, latency_us=LINK.latency_us)
    names = None if options.backends is None else tuple(options.backends)
    settings = SessionSettings(backend_names=names, num_threads=1)
    with start_session("cpu", settings, records_url=options.records) as session:
        for name in options.models:
            began = time.monotonic()
            model = load_model(name, training=True)
            layers = measure_layers(model, session, shard_counts=options.devices, collectives=link)
            stem = name.rpartition("/")[2].replace(":", "-").replace(".py", "")
            path = options.folder / f"{stem}.json"
            path.write_bytes(msgspec.json.format(msgspec.json.encode(layers), indent=1) + b"\n")
            print(f"{path}: {len(layers.layers)} layers in {time.monotonic() - began:.0f} s", flush=True)


def plan_cases(layers: LayersPlan, devices: Sequence[int], *, work: float) -> Iterator[Row]:
    """Yield a row for each number of devices, memory limit and number of micro-batches."""
    for count in devices:
        # Replicas have whole copies: only all devices together divide the ends, as in `tessel tune`.
        own = {shards: ends for shards, ends in layers.shards.items() if shards == count}
        here = msgspec.structs.replace(layers, shards=own)
        for micro_batches in (count, 2 * count, 4 * count):
            request = LayoutRequest(devices=count, micro_batches=micro_batches, link=LINK)
            needed = _bytes_of_1f1b(here, request)
            for share in SHARES:
                yield _row(here, replace(request, memory_limit_bytes=int(share * needed)), share, work)


def _bytes_of_1f1b(layers: LayersPlan, request: LayoutRequest) -> int:
    found = choose_layout(layers, request, budget=SearchBudget(work_limit=0.3))
    return next(row.peak_memory_bytes for row in found.rows if row.name == "1f1b") or 0


def _row(layers: LayersPlan, request: LayoutRequest, share: float, work: float) -> Row:
    began = time.monotonic()
    case = Row(model=layers.model, devices=request.devices, share=share, micro_batches=request.micro_batches)
    try:
        found = choose_layout(layers, request, budget=SearchBudget(work_limit=work))
    except ScheduleError:
        return case
    (plan,) = (row for row in found.rows if row.name == "plan")
    assert plan.step_ms is not None  # the plan has a step
    return msgspec.structs.replace(
        case,
        plan=plan.layout,
        step_ms=plan.step_ms,
        gap=1e3 * plan.step_ms / found.lower_bound_us - 1,
        ratios={row.name: row.ratio for row in found.rows if row.name != "plan" and row.ratio is not None},
        seconds=time.monotonic() - began,
    )


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table of every case, and geometric means by model and number of devices."""
    names = sorted({name for row in rows for name in row.ratios})
    yield (
        "| model | devices | memory | micro-batches | step ms | gap | s | " + " | ".join(names) + " | plan |"
    )
    yield "|---" * (8 + len(names)) + "|"
    for row in rows:
        cells = [f"{row.ratios[name]:.3f}" if name in row.ratios else "-" for name in names]
        yield (
            f"| {row.model} | {row.devices} | {row.share:g} | {row.micro_batches} | {row.step_ms:.1f} | "
            f"{row.gap:.1%} | {row.seconds:.0f} | {' | '.join(cells)} | {row.plan or 'nothing fits'} |"
        )
    yield ""
    yield "| model | devices | over 1F1B | over the best of all baselines, tighter memory | largest gap |"
    yield "|---|---|---|---|---|"
    for model, devices in dict.fromkeys((row.model, row.devices) for row in rows):
        own = [row for row in rows if (row.model, row.devices) == (model, devices) and row.plan]
        over = [row.ratios["1f1b"] for row in own if "1f1b" in row.ratios]
        tight = [min(row.ratios.values()) for row in own if row.share == min(SHARES) and row.ratios]
        gap = max((row.gap for row in own), default=math.nan)
        yield f"| {model} | {devices} | {_mean(over)} | {_mean(tight)} | {gap:.1%} |"


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{math.exp(sum(map(math.log, values)) / len(values)):.3f} ({len(values)})"


if __name__ == "__main__":
    sys.exit(main())

"""Layouts planned from measured layers, beside hand-written ways under the same memory.

    python -m benchmarks.whole_plan measure gpt2 mt5:small benchmarks/whole_plan/models.py:words_256k
    python -m benchmarks.whole_plan published --folder out/published --link 100GB/s
    python -m benchmarks.whole_plan plan out/layers/*.json --out out/whole_plan.jsonl --report out/report.md
    python -m benchmarks.whole_plan confirm benchmarks/data/layers/*.json --report out/confirmed.md

`measure` measures every layer by itself on one thread, also divided over each number of devices, and writes
a document a model into `--folder`; the records make a second run short. `published` writes models in their
published sizes, with layers predicted from a measured profile (`benchmarks.whole_plan.published`). `plan`
plans each for each number of devices, two memory limits (parts of what 1F1B holds with its fastest cut) and
micro-batches of P, 2P and 4P. Rows are kept in `--out`, one a line, and a run that was stopped goes on
where it was. Ratios are to the plan (above 1: the plan is faster). Links are given: 10 GB/s, unless
`--link` says otherwise, and 5 us. It ends with status 1 where some hand-written way is faster than a plan.
`confirm` replays the plan, V-1F1B and the fastest other way of some cases on real ranks whose blocks sleep
(`benchmarks.whole_plan.confirm`), each model and number of devices once, and ends with status 1 where ranks
name another winner though simulated steps differ by more than 5 %.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.simulator.provenance import commit, processor
from benchmarks.whole_plan.cases import LINK, Row, plan_cases
from benchmarks.whole_plan.confirm import (
    BEST_OTHER,
    PLAN,
    V_1F1B,
    Confirmed,
    confirm_case,
    confirmation,
)
from benchmarks.whole_plan.published import published_models
from benchmarks.whole_plan.report import every_row, goals, markdown, means
from tessel.jobs.inputs.arguments import parse_bandwidth
from tessel.planning.cluster import Link
from tuner.frontend import load_model
from tuner.plan import LayersPlan
from tuner.tuning.session import SessionSettings, start_session
from tuner.tuning.stage_costs.measure_layers import measure_layers

_Line = TypeVar("_Line")


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
    measuring.add_argument("--jobs", type=int, default=1, help="programs built at once")
    planning = commands.add_parser("plan")
    planning.add_argument("layers", type=Path, nargs="+")
    planning.add_argument("--work", type=float, default=4.0, help="units of work of each plan")
    planning.add_argument("--out", type=Path, help="file of rows, read first and added to")
    planning.add_argument("--report", type=Path, help="file of the report, in Markdown")
    confirming = commands.add_parser("confirm")
    confirming.add_argument("layers", type=Path, nargs="+")
    confirming.add_argument("--work", type=float, default=2.0, help="units of work of each plan")
    confirming.add_argument("--rounds", type=int, default=2, help="in which the ways take turns")
    confirming.add_argument("--repeats", type=int, default=2, help="counted steps of a way in each round")
    confirming.add_argument("--slower", type=float, default=1.0, help="times the pace of each case")
    confirming.add_argument(
        "--best-alone",
        action="store_true",
        help="leave V-1F1B out, which takes longest where blocks are slow",
    )
    confirming.add_argument("--out", type=Path, help="file of cases, read first and added to")
    confirming.add_argument("--report", type=Path, help="file of the report, in Markdown")
    publishing = commands.add_parser("published")
    publishing.add_argument("--folder", type=Path, default=Path("out/published"))
    for each in (measuring, publishing):
        each.add_argument("--inference", action="store_true", help="layers without a backward")
    for each in (planning, publishing):
        each.add_argument("--link", type=_link, default=LINK, help="bandwidth between devices: 100GB/s")
    for each in (measuring, planning, confirming):
        each.add_argument("--devices", type=int, nargs="+", default=[2, 4, 8])
    options = parser.parse_args(arguments)
    if options.command == "measure":
        _measure(options)
        return 0
    if options.command == "published":
        _publish(options)
        return 0
    if options.command == "confirm":
        return _confirm(options)
    rows = _plan(options)
    for line in (*goals(rows), "", *means(rows), "", *every_row(rows)):
        print(line)
    if options.report is not None:
        options.report.write_text("\n".join(_report(rows, options)) + "\n")
    return 1 if any(row.is_slower for row in rows) else 0


def _link(text: str) -> Link:
    """Read a bandwidth; the latency is that of every case."""
    return Link(bytes_per_s=parse_bandwidth(text), latency_us=LINK.latency_us)


def _publish(options: argparse.Namespace) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    for layers in published_models(options.link, training=not options.inference):
        path = options.folder / f"{layers.model}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(layers), indent=1) + b"\n")
        gib = sum(layer.weight_bytes for layer in layers.layers) / 2**30
        print(f"{path}: {len(layers.layers)} layers, {gib:.1f} GiB of weights", flush=True)


def _measure(options: argparse.Namespace) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    names = None if options.backends is None else tuple(options.backends)
    settings = SessionSettings(backend_names=names, num_threads=1, jobs=options.jobs)
    with start_session("cpu", settings, records_url=options.records) as session:
        for name in options.models:
            began = time.monotonic()
            model = load_model(name, training=not options.inference)
            layers = measure_layers(
                model,
                session,
                shard_counts=options.devices,
                tensor_counts=options.devices,
                collectives=LINK,
            )
            stem = name.rpartition("/")[2].replace(":", "-").replace(".py", "")
            path = options.folder / f"{stem}.json"
            path.write_bytes(msgspec.json.format(msgspec.json.encode(layers), indent=1) + b"\n")
            print(
                f"{path}: {len(layers.layers)} layers in {time.monotonic() - began:.0f} s, ends over "
                f"{sorted(layers.shards)} devices, all layers over {sorted(layers.tensor_parallel)}",
                flush=True,
            )


def _plan(options: argparse.Namespace) -> list[Row]:
    rows = _read_rows(options.out, Row)
    for path in options.layers:
        layers = msgspec.json.decode(path.read_bytes(), type=LayersPlan)
        for row in plan_cases(layers, options.devices, work=options.work, link=options.link, known=rows):
            rows.append(row)
            line = msgspec.json.encode(row)
            print(line.decode(), file=sys.stderr, flush=True)
            if options.out is not None:
                with options.out.open("ab") as file:
                    file.write(line + b"\n")
    return rows


def _confirm(options: argparse.Namespace) -> int:
    """Replay cases on ranks; returns 1 where another way wins than was simulated."""
    cases = _read_rows(options.out, Confirmed)
    done = {(case.model, case.devices) for case in cases}
    for path in options.layers:
        layers = msgspec.json.decode(path.read_bytes(), type=LayersPlan)
        for devices in options.devices:
            if (layers.model, devices) in done:
                continue
            case = confirm_case(
                layers,
                devices,
                2 * devices,
                work=options.work,
                rounds=options.rounds,
                repeats=options.repeats,
                slower=options.slower,
                roles=(PLAN, BEST_OTHER) if options.best_alone else (PLAN, V_1F1B, BEST_OTHER),
            )
            cases.append(case)
            line = msgspec.json.encode(case)
            print(line.decode(), file=sys.stderr, flush=True)
            if options.out is not None:
                with options.out.open("ab") as file:
                    file.write(line + b"\n")
    names = " ".join(path.name for path in options.layers)
    header = {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m}",
        "command": f"python -m benchmarks.whole_plan confirm {names} --work {options.work:g} --rounds "
        f"{options.rounds} --repeats {options.repeats}",
        "commit": commit(),
        "machine": f"{processor()}, Python {platform.python_version()}",
    }
    lines = list(confirmation(cases, header=header))
    print("\n".join(lines))
    if options.report is not None:
        options.report.write_text("\n".join(lines) + "\n")
    return 1 if any(case.is_contradicted for case in cases) else 0


def _read_rows(path: Path | None, of: type[_Line]) -> list[_Line]:
    """Return the rows of an earlier run; a last line that was cut off is left out."""
    if path is None or not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    return [msgspec.json.decode(line, type=of) for line in lines if line.endswith(b"\n")]


def _report(rows: Sequence[Row], options: argparse.Namespace) -> Sequence[str]:
    names = " ".join(path.name for path in options.layers)
    every = [msgspec.json.decode(path.read_bytes(), type=LayersPlan) for path in options.layers]
    is_measured = all(layer.forward.source == "measured" for layers in every for layer in layers.layers)
    devices = " ".join(map(str, options.devices))
    gb_per_s = options.link.bytes_per_s / 1e9
    return tuple(
        markdown(
            rows,
            date=f"{datetime.datetime.now(datetime.UTC):%Y-%m}",
            command=f"python -m benchmarks.whole_plan plan {names} --work {options.work:g} --link "
            f"{gb_per_s:g}GB/s --devices {devices}",
            commit=commit(),
            machine=f"{processor()}, Python {platform.python_version()}",
            costs="*measured* on one thread" if is_measured else "*predicted* from a profile",
            link=f"{gb_per_s:g} GB/s and {options.link.latency_us:g} us",
        )
    )


if __name__ == "__main__":
    sys.exit(main())

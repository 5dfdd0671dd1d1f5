"""Predictions beside published runs: `python -m benchmarks.published FOLDER`, the tables of the dated report.

The folder holds `simumax/`, `megatron/` and `mlperf/` as docs of the report name them. No clock is read, so
that every machine prints the same figures; it takes about a minute.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.published import bridge, megatron, mlperf, primus, simumax

GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="with simumax/, megatron/ and mlperf/")
    folder = parser.parse_args().folder
    for title, lines in (
        ("SimuMax on eight B200", simumax_lines(folder / "simumax")),
        ("Megatron-LM's functional tests", megatron_lines()),
        ("MLPerf", mlperf_lines(folder / "mlperf")),
        ("Megatron-Bridge", bridge_lines(folder / "megatron")),
        ("Schedules of Primus", primus.lines()),
    ):
        for line in ("", f"## {title}", "", *lines):
            print(line, flush=True)


def simumax_lines(folder: Path) -> Iterator[str]:
    """Yield errors of memory and time, ours and theirs."""
    rows = simumax.load_rows(folder)
    yield "| run | memory | ours | SimuMax | step | ours | SimuMax |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        yield (
            f"| {row.case.removesuffix('_cef')} | {row.real_gib:.1f} GiB "
            f"| {_off(row.ours_gib, row.real_gib)} | {_off(row.theirs_gib, row.real_gib)} "
            f"| {row.real_ms:.0f} ms "
            f"| {_off(row.ours_ms, row.real_ms)} | {_off(row.theirs_ms, row.real_ms)} |"
        )
    yield ""
    for what, ours, theirs in (
        ("memory", [(r.ours_gib, r.real_gib) for r in rows], [(r.theirs_gib, r.real_gib) for r in rows]),
        ("step", [(r.ours_ms, r.real_ms) for r in rows], [(r.theirs_ms, r.real_ms) for r in rows]),
    ):
        yield f"- {what}, {len(rows)} runs: ours {_errors(ours)}; SimuMax {_errors(theirs)}"


def megatron_lines() -> Iterator[str]:
    """Yield the memory of the last rank, allocated after a step and at most."""
    rows = megatron.load_rows()
    yield "| test | device | devices | after a step | ours | at most | ours |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        yield (
            f"| {row.test} | {row.device} | {row.run.devices} "
            f"| {row.held_bytes / GIB:.1f} GiB | {_off(row.ours_held_bytes, row.held_bytes)} "
            f"| {row.peak_bytes / GIB:.1f} GiB | {_off(row.ours_bytes, row.peak_bytes)} |"
        )
    yield ""
    piped = [row for row in rows if row.run.pipeline > 1]
    for what, some in (("all", rows), ("with more than one stage", piped)):
        yield f"- at most, {len(some)} rows, {what}: {_errors([(r.ours_bytes, r.peak_bytes) for r in some])}"
    above = [(r.ours_bytes - r.ours_held_bytes, r.peak_bytes - r.held_bytes) for r in piped]
    yield f"- of these, at most less what is held after a step: {_errors(above)}"


def mlperf_lines(folder: Path) -> Iterator[str]:
    """Yield steps from the cost model alone, and from two sizes."""
    rows = mlperf.load_rows(folder)
    lines = {id(row): step_s for row, step_s in mlperf.from_two_sizes(rows)}
    yield "| system | model | devices | micro-batches | step | from a data sheet | from two sizes | memory |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        two = _off(lines[id(row)], row.real_s) if id(row) in lines else ""
        yield (
            f"| {row.system} ({row.gpu}) | {row.run.model} | {row.run.devices} | {row.run.micro_batches} "
            f"| {row.real_s:.2f} s | {_off(row.ours_s, row.real_s)} | {two} "
            f"| {max(row.ours.memory_bytes) / GIB:.1f} GiB |"
        )
    yield ""
    held = [row for row in rows if row.run.model != "gpt-3-175b"]
    yield (
        f"- from a data sheet, Llama-3.1 405B, {len(held)} sizes: "
        f"{_errors([(row.ours_s, row.real_s) for row in held])}"
    )
    pairs = [(lines[id(row)], row.real_s) for row in rows if id(row) in lines]
    yield f"- from two sizes, {len(pairs)} others: {_errors(pairs)}"


def bridge_lines(folder: Path) -> Iterator[str]:
    """Yield what can be written down, what fits, throughput by model, and ranks."""
    rows = bridge.load_rows(folder)
    written = [row for row in rows if row.run is not None]
    yield f"- {len(written)} of {len(rows)} layouts can be written down"
    yield from (f"  - {row.model}, {row.gpu}, {row.release}: {row.reason}" for row in rows if row.run is None)
    yield f"- {sum(row.fits for row in written)} of them fit"
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in written:
        if row.dtype != "NVFP4":
            ratios[row.model, row.gpu].append(row.ours_tokens_per_s / row.tokens_per_s)
    every = sorted(ratio for each in ratios.values() for ratio in each)
    yield (
        f"- predicted over published throughput, {len(every)} layouts in 8 or 16 bits: median "
        f"{statistics.median(every):.2f}, nine of ten within {every[len(every) // 20]:.2f} to "
        f"{every[-1 - len(every) // 20]:.2f}"
    )
    yield from ("", "| model | GPU | layouts | predicted over published, median |", "|---|---|---|---|")
    for (model, gpu), each in sorted(ratios.items()):
        yield f"| {model} | {gpu} | {len(each)} | {statistics.median(each):.2f} |"
    yield from (
        "",
        "| model | GPU | layouts | rank correlation | in 8 or 16 bits |",
        "|---|---|---|---|---|",
    )
    priced = {
        (model, gpu): f"{rank:.2f} of {count}"
        for model, gpu, count, rank in bridge.rank_correlations([r for r in rows if r.dtype != "NVFP4"])
    }
    for model, gpu, count, rank in bridge.rank_correlations(rows):
        yield f"| {model} | {gpu} | {count} | {rank:.2f} | {priced.get((model, gpu), '')} |"
    yield from ("", "| does not fit | GPU | layout | predicted |", "|---|---|---|---|")
    seen = {}
    for row in written:
        assert row.run is not None
        assert row.ours is not None
        if not row.fits:
            run = row.run
            layout = (
                f"{run.devices} devices, TP {run.tensor_parallel}, PP {run.pipeline}, CP "
                f"{run.context_parallel}, EP {run.expert_parallel}, {run.micro_batch} × {run.recipe.tokens}"
            )
            seen[row.model, row.gpu, layout] = max(row.ours.memory_bytes) / GIB
    for (model, gpu, layout), gib in seen.items():
        yield f"| {model} | {gpu} | {layout} | {gib:.0f} GiB |"


def _off(ours: float, real: float) -> str:
    """Return an error with its sign."""
    return f"{(ours / real - 1) * 100:+.1f} %"


def _errors(pairs: Sequence[tuple[float, float]]) -> str:
    """Return mean, median and worst absolute error."""
    errors = [abs(ours / real - 1) * 100 for ours, real in pairs]
    return (
        f"mean {statistics.fmean(errors):.1f} %, median {statistics.median(errors):.1f} %, "
        f"worst {max(errors):.1f} %"
    )


if __name__ == "__main__":
    main()

"""Tables of Sailor's runs: estimated beside real, and beside Sailor's own simulator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from benchmarks.reality.calibration import Calibrated
from benchmarks.reality.numbers import mean_of, percent, signed
from benchmarks.reality.sailor_data import Collection, Run
from benchmarks.reality.sailor_runs import COLLECTIVE, HOP, Estimated, Variant, estimate, sound_runs
from tessel.planning.runtime import DEEPSPEED, OVERLAPPED


def estimate_all(collection: Collection) -> tuple[Estimated, ...]:
    """Return every run that is no copy of another, estimated."""
    return tuple(estimate(collection, run) for run in sound_runs(collection))


def summary(estimated: Sequence[Estimated]) -> Iterator[str]:
    """Yield mean absolute errors by group of runs."""
    yield "| runs | number | time, ours | time, Sailor's | memory, ours | memory, Sailor's |"
    yield "|---|---|---|---|---|---|"
    for name, chosen in groups(estimated).items():
        yield (
            f"| {name} | {len(chosen)} | {percent(mean_of(abs(e.time_error) for e in chosen))} "
            f"| {percent(mean_of(abs(e.run.simulated_time_error) for e in chosen))} "
            f"| {percent(mean_of(abs(e.memory_error) for e in chosen))} "
            f"| {percent(mean_of(abs(e.run.simulated_memory_error) for e in chosen))} |"
        )


def groups(estimated: Sequence[Estimated]) -> dict[str, list[Estimated]]:
    """Return the runs that are averaged together."""
    ours = [each for each in estimated if each.run.is_clariden]
    opt = [each for each in ours if each.run.model == "OPT-350"]
    return {
        "GH200": ours,
        "GH200, OPT-350": opt,
        "GH200, OPT-350, more than 2 stages": [each for each in opt if each.run.pipeline > 2],
        "GH200, GPT-Neo-2.7": [each for each in ours if each.run.model != "OPT-350"],
        "slow links": [each for each in estimated if not each.run.is_clariden],
    }


def every_run(estimated: Sequence[Estimated]) -> Iterator[str]:
    """Yield a row for each run."""
    yield (
        "| run | stages, replicas | micro-batch | real s | earlier s | ours s | error | Sailor's | real GB "
        "| ours GB | error | Sailor's |"
    )
    yield "|" + "---|" * 12
    for each in estimated:
        run = each.run
        earlier = "" if run.earlier_s is None else f"{run.earlier_s:.3f}"
        yield (
            f"| {run.name} | {run.pipeline}, {run.data_parallel} | {run.micro_batch} x {run.micro_batches} "
            f"| {run.real_s:.3f} | {earlier} | {each.seconds:.3f} | {signed(each.time_error)} "
            f"| {signed(run.simulated_time_error)} | {run.real_bytes / 1e9:.2f} "
            f"| {max(each.step.memory_bytes) / 1e9:.2f} | {signed(each.memory_error)} "
            f"| {signed(run.simulated_memory_error)} |"
        )


def ranking(estimated: Sequence[Estimated]) -> Iterator[str]:
    """Yield, of each group of runs with one model, number of nodes and batch, who is first."""
    yield "| cluster, model | nodes, batch | fastest really | ours | Sailor's | order, ours |"
    yield "|---|---|---|---|---|---|"
    for key, members in contests(estimated):
        real = sorted(members, key=lambda each: each.run.real_s)
        ours = sorted(members, key=lambda each: each.seconds)
        theirs = sorted(members, key=lambda each: each.run.simulated_s)
        yield (
            f"| {key[0]} | {key[1]}, {key[2]} | {layout_name(real[0].run)} "
            f"| {mark(ours[0] is real[0], layout_name(ours[0].run))} "
            f"| {mark(theirs[0] is real[0], layout_name(theirs[0].run))} "
            f"| {'as really' if ours == real else ' < '.join(layout_name(e.run) for e in ours)} |"
        )


def contests(
    estimated: Sequence[Estimated],
) -> Iterator[tuple[tuple[str, int, int], list[Estimated]]]:
    """Yield groups of at least two runs of one model on as many nodes with the same batch."""

    def key(each: Estimated) -> tuple[str, int, int]:
        return each.run.name.rpartition("/")[0], each.run.nodes, each.run.global_batch

    for found, members in groupby(sorted(estimated, key=key), key=key):
        chosen = list(members)
        if len(chosen) > 1:
            yield found, chosen


def ablation(collection: Collection) -> Iterator[str]:
    """Yield mean absolute errors of time on GH200 as the terms come in, one after the other."""
    blocking = msgspec.structs.replace(OVERLAPPED, has_blocking_hops=True, splits_hops=True)
    at_best = HOP
    steps = (
        ("profile as published, hops beside blocks", Variant(OVERLAPPED, at_best, False, False)),
        ("no layer slower than at a larger micro-batch", Variant(OVERLAPPED, at_best, True, False)),
        ("the head of GPT-Neo", Variant(OVERLAPPED, at_best, True, True)),
        ("hops block both ends, and are gathered", Variant(blocking, at_best, True, True)),
        ("gradients at the calibrated bandwidth", Variant(blocking, COLLECTIVE, True, True)),
        ("the calibrated overhead of a hop", Variant(DEEPSPEED, COLLECTIVE, True, True)),
    )
    yield "| with | OPT-350 | OPT-350, micro-batch 8 | GPT-Neo-2.7 | GPT-Neo-2.7, micro-batch 4 |"
    yield "|---|---|---|---|---|"
    for name, variant in steps:
        found = [estimate(collection, run, variant) for run in sound_runs(collection) if run.is_clariden]
        opt = [each for each in found if each.run.model == "OPT-350"]
        neo = [each for each in found if each.run.model != "OPT-350"]
        columns = (
            opt,
            [each for each in opt if each.run.micro_batch == 8],
            neo,
            [each for each in neo if each.run.micro_batch == 4],
        )
        cells = " | ".join(percent(mean_of(abs(each.time_error) for each in column)) for column in columns)
        yield f"| {name} | {cells} |"


def repeats(estimated: Sequence[Estimated]) -> Iterator[str]:
    """Yield how far two measurements of one run lie apart, and the estimates from each."""
    twice = [(each, each.run.earlier_s) for each in estimated if each.run.earlier_s is not None]
    apart = [abs(each.run.real_s / earlier - 1) for each, earlier in twice]
    yield (
        f"{len(twice)} runs of OPT-350 were measured twice; the two lie {percent(mean_of(apart))} apart on "
        f"average, {percent(max(apart))} at most. Mean error of ours against the later ones: "
        f"{percent(mean_of(abs(each.time_error) for each, _ in twice))}, against the earlier ones: "
        f"{percent(mean_of(abs(each.seconds / earlier - 1) for each, earlier in twice))}."
    )


def left_out(runs: Sequence[Run]) -> Iterator[str]:
    """Yield which runs are copies."""
    for run in runs:
        if run.copy_of:
            yield f"- {run.name}: a copy of {run.copy_of}."


def calibrated(found: Calibrated) -> Iterator[str]:
    """Yield what calibration finds."""
    runtime = found.runtime
    yield (
        f"Overhead of a hop {runtime.hop_overhead_us:.0f} us at each end; context "
        f"{runtime.context_bytes / 1e9:.1f} GB; {runtime.peak_factor} bytes for each byte that a layer needs "
        f"while it runs; gradients at {found.collective.bytes_per_s / 1e9:.0f} GB/s of the "
        f"{HOP.bytes_per_s / 1e9:.1f} that a link has."
    )


def layout_name(run: Run) -> str:
    """Return a run's layout in short."""
    return f"P{run.pipeline} D{run.data_parallel}"


def mark(is_right: bool, name: str) -> str:
    """Return a name, marked where it is not the right one."""
    return name if is_right else f"**{name}**"

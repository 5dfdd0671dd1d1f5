"""The table of timings that a trace is: medians of its ranges over micro-batches and steps.

A trace shows no bytes: weights, activations and hops count 0 until they are filled in, so that a plan of it
knows neither memory nor transfers. Checked in tests/tessel/profiles/traces/test_trace_profile.py.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from tessel.errors import ScheduleError
from tessel.placement import BlockKind
from tessel.profiles.figures import make_cost, refusal
from tessel.profiles.profile import MAX_SPREAD, CostTable, Layer, Profile
from tessel.profiles.traces.ranges import Trace

NO_BYTES = (
    "it shows no bytes: weights, activations and what is handed on count 0, so that the plan knows no memory "
    "and no transfers; write the table with --save-table and fill in weights_mib, saved_mib and boundary_mib"
)
"""What every profile of timings alone lacks."""

MIN_RUNS = 4
"""Runs of a block below which nothing is said of how much they vary."""

WIDE = 0.25
"""Half the width of the middle half of a stage's times, as a share of the median, above which it is told."""

_FIGURES = {
    BlockKind.FORWARD: "forward_us",
    BlockKind.BACKWARD: "backward_us",
    BlockKind.BACKWARD_INPUT: "backward_input_us",
    BlockKind.BACKWARD_WEIGHT: "backward_weight_us",
    BlockKind.RECOMPUTE: "recompute_us",
}

_Times = Mapping[tuple[int, BlockKind], Sequence[float]]


def profile_of_trace(trace: Trace, path: object = None) -> Profile:
    """Return the profile whose layers are a trace's stages or layers.

    Args:
        trace: at least one micro-batch of each.
        path: where it comes from, for messages; its name if None.

    Raises:
        DocumentError: a stage has no forward in it, or some stages have a backward and others none.
    """
    path = trace.name if path is None else path
    taken: dict[tuple[int, BlockKind], list[float]] = defaultdict(list)
    for each in trace.ranges:
        taken[each.stage, each.kind].append(each.duration_us)
    _check_stages(trace, taken, path)
    costs = [
        make_cost(_figures(taken, stage), path, name, units_are_known=True)
        for stage, name in enumerate(trace.stage_names)
    ]
    try:
        return Profile(
            name=trace.name,
            device=trace.device,
            layers=tuple(map(Layer, trace.stage_names)),
            tables=(
                CostTable(
                    micro_batch=1,
                    tensor_parallel=1,
                    costs=tuple(costs),
                    spreads=tuple(_sigma(taken, stage) for stage in range(len(costs))),
                ),
            ),
            notes=(*trace.notes, NO_BYTES, *_spread(trace.stage_names, taken)),
        )
    except ScheduleError as error:
        raise refusal(path, "", error, "trace whole steps of all ranks") from error


def _check_stages(trace: Trace, taken: _Times, path: object) -> None:
    missing = [
        name for stage, name in enumerate(trace.stage_names) if not taken.get((stage, BlockKind.FORWARD))
    ]
    if missing:
        raise refusal(
            path,
            "",
            f"{', '.join(missing[:5])} of {len(trace.stage_names)} have no forward in it",
            "give the traces of all ranks, in one folder, over a whole step",
        )


def _figures(taken: _Times, stage: int) -> dict[str, float | None]:
    found: dict[str, float | None] = {
        name: statistics.median(times)
        for kind, name in _FIGURES.items()
        if (times := taken.get((stage, kind)))
    }
    halves = ("backward_input_us", "backward_weight_us")
    if any(half in found for half in halves):
        found |= {half: found.get(half, 0.0) for half in halves}
    if any(kind not in (BlockKind.FORWARD, BlockKind.RECOMPUTE) for _, kind in taken):
        # A layer without a gradient, in a trace that trains others.
        found.setdefault("backward_us", None if any(half in found for half in halves) else 0.0)
    return found


def _sigma(taken: _Times, stage: int) -> float:
    """Return sigma of a log-normal law whose middle half is as wide as that of a stage's times."""
    whole = width = 0.0
    for (own, _), times in taken.items():
        if own == stage and len(times) >= MIN_RUNS:
            low, middle, high = statistics.quantiles(times, n=4)
            whole, width = whole + middle, width + (high - low) / 2
    return min(MAX_SPREAD, width / 0.6745 / whole) if whole else 0.0


def _spread(names: Sequence[str], taken: _Times) -> list[str]:
    """Return a note on the times that differ most between micro-batches."""
    worst, note = WIDE, []
    for (stage, kind), times in taken.items():
        middle = statistics.median(times)
        if len(times) < MIN_RUNS or not middle:
            continue
        low, _, high = statistics.quantiles(times, n=4)
        if (high - low) / 2 / middle > worst:
            worst = (high - low) / 2 / middle
            note = [
                f"{kind.value} of {names[stage]} took {low / 1e3:.3g} to {high / 1e3:.3g} ms in half of its "
                f"{len(times)} runs, median {middle / 1e3:.3g} ms; trace more steps, on an idle machine"
            ]
    return note

"""Choose the cuts of a sequence of layers that minimise the latency of the slowest stage.

The model of the world: a stage takes the sum of its layers' costs, and needs the sum of their bytes. Costs of
layers measured apart leave out what fusing across them would win. In steady state a pipeline moves at the
pace of its slowest stage, so that is minimised first. Where one heavy layer sets the pace, the rest is still
to be balanced, because filling and draining take the sum of all stages: the least sum of squared costs comes
second. Among equal cuts the one that sends least is chosen, and among those the one whose cuts come earliest.
Checked against every possible cut in tests/tuner/stages/test_balance.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tuner.errors import TunerError

_CostOf: TypeAlias = Callable[[int, int], float]

_NO_CUTS: tuple[float, float, tuple[int, ...]] = (math.inf, math.inf, ())


def choose_cuts(
    costs_us: Sequence[float],
    memory_bytes: Sequence[int],
    num_stages: int,
    *,
    memory_limit_bytes: int | None = None,
    communication_us: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
) -> tuple[int, ...]:
    """Find the layers at which a new stage begins: `num_stages - 1` indices, rising, none of them zero.

    Exact dynamic programming, O(stages x layers²), in two passes: the least slowest stage, then the most
    even cuts whose stages are all no slower than that.

    Args:
        costs_us: cost of each layer.
        memory_bytes: bytes of each layer, to be summed over a stage.
        num_stages: how many stages, each of at least one layer.
        memory_limit_bytes: what a stage may need at most.
        communication_us: cost of sending what leaves each layer but the last; breaks ties.
        names: the layers' names, for messages.

    Raises:
        ValueError: lengths differ, or a cost is no finite number >= 0.
        TunerError: there are fewer layers than stages, or no cut fits the limit; names the layer.

    Source: the exact solution of the linear partition (chains-on-chains) problem; Pinar and Aykanat, "Fast
        optimal load balancing algorithms for 1D partitioning", JPDC 2004, section 2. Added here: further
        objectives and a capacity.
    """
    num_layers = len(costs_us)
    sending_us = [0.0] * (num_layers - 1) if communication_us is None else list(communication_us)
    labels = [f"layer {index}" for index in range(num_layers)] if names is None else list(names)
    _check_arguments(costs_us, memory_bytes, sending_us, labels, num_stages)
    limit = math.inf if memory_limit_bytes is None else memory_limit_bytes
    _check_limit(memory_bytes, limit, num_stages, labels)
    cost_sums = list(itertools.accumulate(costs_us, initial=0.0))
    memory_sums = list(itertools.accumulate(memory_bytes, initial=0))

    def cost_of(first: int, last: int) -> float:
        fits = memory_sums[last] - memory_sums[first] <= limit
        return cost_sums[last] - cost_sums[first] if fits else math.inf

    slowest_us = _least_slowest_stage(num_layers, num_stages, cost_of)
    return _most_even(num_layers, num_stages, cost_of, slowest_us, sending_us)


def _least_slowest_stage(num_layers: int, num_stages: int, cost_of: _CostOf) -> float:
    best = [cost_of(first, num_layers) for first in range(num_layers)]
    for stages_left in range(2, num_stages + 1):
        best = [
            min(
                (
                    max(cost_of(first, last), best[last])
                    for last in range(first + 1, num_layers - stages_left + 2)
                ),
                default=math.inf,
            )
            for first in range(num_layers)
        ]
    return best[0]


def _most_even(
    num_layers: int, num_stages: int, cost_of: _CostOf, slowest_us: float, sending_us: Sequence[float]
) -> tuple[int, ...]:
    """Find the most even cuts among those whose stages all cost at most `slowest_us`.

    Each suffix of layers keeps its least (sum of squared costs, communication, cuts), compared in that order.
    """
    suffixes: list[tuple[float, float, tuple[int, ...]]] = []
    for first in range(num_layers):
        cost_us = cost_of(first, num_layers)
        suffixes.append((cost_us**2, 0.0, ()) if cost_us <= slowest_us else _NO_CUTS)
    for stages_left in range(2, num_stages + 1):
        suffixes = [
            min(
                (
                    (
                        cost_of(first, last) ** 2 + suffixes[last][0],
                        sending_us[last - 1] + suffixes[last][1],
                        (last, *suffixes[last][2]),
                    )
                    for last in range(first + 1, num_layers - stages_left + 2)
                    if cost_of(first, last) <= slowest_us and suffixes[last][0] < math.inf
                ),
                default=_NO_CUTS,
            )
            for first in range(num_layers)
        ]
    return suffixes[0][2]


def _check_arguments(
    costs_us: Sequence[float],
    memory_bytes: Sequence[int],
    sending_us: Sequence[float],
    labels: Sequence[str],
    num_stages: int,
) -> None:
    num_layers = len(costs_us)
    lengths = (len(memory_bytes), len(sending_us) + 1, len(labels))
    if num_layers and set(lengths) != {num_layers}:
        raise ValueError(
            f"{num_layers} layers came with {lengths} bytes, borders + 1 and names; give one each"
        )
    for cost in (*costs_us, *sending_us, *memory_bytes):
        if not 0 <= cost < math.inf:
            raise ValueError(f"cost {cost} is no finite number >= 0; measure the layer again")
    if num_stages < 1:
        raise ValueError(f"{num_stages} stages were asked for, and a pipeline has at least one; ask for more")
    if num_layers < num_stages:
        raise TunerError(
            f"the model has {num_layers} layers that can be cut apart, fewer than the {num_stages} stages "
            "asked for; ask for fewer stages"
        )


def _check_limit(memory_bytes: Sequence[int], limit: float, num_stages: int, labels: Sequence[str]) -> None:
    """Refuse what no cut can fit, by filling stages greedily: the fewest stages that the limit allows."""
    stages_needed, filled = 1, 0
    for label, num_bytes in zip(labels, memory_bytes, strict=True):
        if num_bytes > limit:
            raise TunerError(
                f"layer {label!r} needs {num_bytes} bytes, more than the {limit} bytes a stage may have; "
                "raise the limit or make the layer smaller"
            )
        if filled + num_bytes > limit:
            stages_needed, filled = stages_needed + 1, 0
            overflowing = label
        filled += num_bytes
    if stages_needed > num_stages:
        raise TunerError(
            f"the layers from {overflowing!r} on do not fit: {num_stages} stages of {limit} bytes are too "
            "few and "
            f"at least {stages_needed} are needed; use more stages or raise the limit"
        )

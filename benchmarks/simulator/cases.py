"""Schedules that are run in turn: of equal and unequal stages, and of shared blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tessel.handwritten import HANDWRITTEN
from tessel.placement import Placement
from tessel.schedule import Schedule
from tessel.search import find_schedule
from tessel.shapes import make_shape

STEPS_PER_MS = 4

FACTORS = (1.0, 1.5, 0.75, 1.25)


class Case(NamedTuple):
    """Schedules of one placement, run in turn."""

    name: str
    schedules: dict[str, Schedule]


def make_cases(num_ranks: int, ms: int, num_micro_batches: int, search_s: float) -> Iterator[Case]:
    """Yield the equal stages of a chain, of a V, and unequal stages of a chain."""
    whole = ms * STEPS_PER_MS
    chain = make_shape("vshape", num_ranks, choose_backward=True, **_spans([whole] * num_ranks))
    yield Case(
        f"{ms} ms, chain",
        {
            **{name: _built(name, chain, num_micro_batches) for name in ("1f1b", "zb-h1")},
            "searched": _searched(chain, num_micro_batches, "1f1b", search_s),
        },
    )
    v = make_shape("zbv", num_ranks, split_backward=True, **_spans([whole // 2] * 2 * num_ranks))
    yield Case(
        f"{ms} ms, V",
        {
            "zb-v": _built("zb-v", v, num_micro_batches),
            "searched-v": _searched(v, num_micro_batches, "zb-v", search_s),
        },
    )
    factors = [FACTORS[rank % len(FACTORS)] for rank in range(num_ranks)]
    unequal = make_shape(
        "vshape", num_ranks, choose_backward=True, **_spans([round(whole * factor) for factor in factors])
    )
    yield Case(
        f"{ms} ms × {'/'.join(map(str, FACTORS))}, chain",
        {
            **{name: _built(name, unequal, num_micro_batches) for name in ("1f1b", "zb-h1")},
            "searched": _searched(unequal, num_micro_batches, "1f1b", search_s),
        },
    )


def make_shared_cases(num_ranks: int, ms: int, num_micro_batches: int, search_s: float) -> Iterator[Case]:
    """Yield the m and the nn, whose blocks on all ranks take half as long as the others' forward."""
    whole = ms * STEPS_PER_MS
    for shape in ("mshape", "nnshape"):
        placement = make_shape(
            shape,
            num_ranks,
            choose_backward=True,
            tensor_parallel_span=whole // 2,
            forward_span=whole,
            backward_span=2 * whole,
            backward_input_span=whole,
            backward_weight_span=whole,
        )
        yield Case(
            f"{ms} ms, {shape.removesuffix('shape')}",
            {
                "1f1b": _built("1f1b", placement, num_micro_batches),
                "searched": _searched(placement, num_micro_batches, "1f1b", search_s),
            },
        )


def _spans(whole: Sequence[int]) -> dict[str, Any]:
    return {
        "forward_span": list(whole),
        "backward_span": [2 * span for span in whole],
        "backward_input_span": list(whole),
        "backward_weight_span": list(whole),
    }


def _built(name: str, placement: Placement, num_micro_batches: int) -> Schedule:
    rule = next(rule for rule in HANDWRITTEN if rule.name == name)
    return rule.build(placement, micro_batches=num_micro_batches)


def _searched(placement: Placement, num_micro_batches: int, like: str, search_s: float) -> Schedule:
    limits = _built(like, placement, num_micro_batches).peak_memory
    return find_schedule(
        placement, micro_batches=num_micro_batches, memory=max(limits), time_limit_s=search_s
    )

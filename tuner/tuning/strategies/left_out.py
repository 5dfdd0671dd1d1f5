"""Answers without some of the backends that the search's answer uses.

Checked in tests/tuner/tuning/strategies/test_left_out.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tuner.errors import UnpriceableError
from tuner.partition.candidate import FREE
from tuner.tuning.end_to_end.cache import EndToEndCache, Variant, fastest
from tuner.tuning.partitioned_function import PartitionedFunction, choose_partition
from tuner.tuning.strategies.coarser import find_coarser
from tuner.tuning.strategies.proposed import Proposal, Proposed

_NEARLY_AS_FAST = 1.1
"""Ratio to the fastest whole so far up to which an answer is worth coarser ones; those seldom gain more."""


def left_out(proposed: Proposed) -> Iterable[Proposal]:
    """Propose answers without some of the backends that the search's answer uses."""
    best = fastest(*(each.variant for each in proposed.proposals))
    for name, variant in leave_backends_out(proposed.wholes, proposed.first, best).items():
        yield Proposal(found_by=name, variant=variant)


def leave_backends_out(
    wholes: EndToEndCache, searched: PartitionedFunction, best: Variant
) -> dict[str, Variant]:
    """Leave out one backend after the other, for as long as that makes the fastest whole so far faster.

    Prices of parts alone can favour a backend whose parts cost more among others' than they do alone. Leaving
    out a backend that an answer does not use would only find that answer again, so it is not tried. At most
    one more round is measured than backends are left out, with one whole per backend, and coarser ones of
    those that are nearly as fast as the fastest.

    Args:
        wholes: measures.
        searched: the answer of the search among all backends.
        best: the fastest whole so far, by whatever partition.

    Returns:
        The fastest whole by the names of the backends left out, such as `without blas,torch`.
    """
    variants: dict[str, Variant] = {}
    left_out: tuple[str, ...] = ()
    answer = searched
    while True:
        answers: dict[str, PartitionedFunction] = {}
        found: dict[str, Variant] = {}
        for backend in sorted({part.backend for part in answer.partition.chosen} - {FREE}):
            search = partial(choose_partition, without={*left_out, backend})
            try:
                answers[backend] = search(answer.priced)
            except UnpriceableError:
                continue  # Nobody else can run what it runs.
            variant = wholes.try_measure(answers[backend], label="mix")
            if variant is None:
                continue
            near = variant[1].latency_us <= _NEARLY_AS_FAST * best[1].latency_us
            coarser = find_coarser(wholes, search, answers[backend], label="mix") if near else None
            found[backend] = fastest(variant, coarser)
        variants |= {f"without {','.join([*left_out, name])}": each for name, each in found.items()}
        helpful = min(found, key=lambda name: found[name][1].latency_us, default=None)
        if helpful is None or found[helpful][1].latency_us >= best[1].latency_us:
            return variants
        left_out, answer, best = (*left_out, helpful), answers[helpful], found[helpful]

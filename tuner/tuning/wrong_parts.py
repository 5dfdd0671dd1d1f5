"""Find the part that makes a partitioned program wrong, and exclude it from later searches.

A part can be right on the random inputs that it was checked with alone, and wrong in place: on values that
only the model makes, or because it writes where it must not. So parts are handed to their backends one after
the other, in the order in which they run, and the rest is left to plain loops: the first part with which the
results become wrong is the one. It is found by bisection, because a program without partitions is right by
definition and the whole is known to be wrong. Checked in tests/tuner/tuning/test_wrong_parts.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tuner.backends.protocol import settings_for
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.relax_types import IRModule
from tuner.lowering.outline import extract_function, extract_module, order_partitions, outline_partitions
from tuner.measuring.measurer import Measurer
from tuner.measuring.messages import WRONG_NUMBERS
from tuner.measuring.request import MeasureRequest
from tuner.numerical_error import Deviation
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.partition.price import Invalid
from tuner.pricing.measured import workload_of_candidate
from tuner.tuning.partitioned_function import PartitionedFunction, PricedFunction

_MAX_WRONG_PARTS = 3
"""Wrong parts of one backend in one model, after which all of its candidates are left out: each costs another
choice of the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongPart:
    """A part that gives wrong numbers in place.

    Attributes:
        candidate: which nodes, and who runs them.
        deviation: how far the whole program is off with this part and those that run before it.
    """

    candidate: CandidatePartition
    operators: tuple[str, ...]
    deviation: Deviation

    @property
    def reason(self) -> str:
        """What its record and whoever asks for its price are told."""
        error = self.deviation.relative_error
        found = self.deviation.fault if error is None else f"is off by {error:.1e}"
        return f"{WRONG_NUMBERS}: {self.deviation.tensor} {found} within a whole model, though not alone"


def find_wrong_part(
    function: PartitionedFunction,
    compare: Callable[[IRModule], Deviation],
    *,
    tolerance: float,
    deviation: Deviation,
) -> WrongPart:
    """Return the part by which a wrong program becomes wrong, with log2(parts) comparisons.

    Args:
        function: a program whose error is beyond the tolerance.
        compare: the worst result of a module with only some of the parts as partitions.
        tolerance: largest error that counts as right.
        deviation: the whole program's worst result.
    """
    graph, chosen = function.priced.graph, function.partition.chosen
    ordered = [
        position
        for position in order_partitions(graph, [part.sub_graph for part in chosen])
        if chosen[position].backend != FREE
    ]
    num_right, num_wrong = 0, len(ordered)
    while num_wrong - num_right > 1:
        middle = (num_right + num_wrong) // 2
        found = compare(_only_these(graph, chosen, ordered[:middle]))
        if found.is_within(tolerance):
            num_right = middle
        else:
            num_wrong, deviation = middle, found
    candidate = chosen[ordered[num_wrong - 1]]
    return WrongPart(
        candidate=candidate, operators=graph.operators_of(candidate.sub_graph.inside), deviation=deviation
    )


def record_wrong_part(measurer: Measurer, graph: DataflowGraph, wrong: WrongPart) -> None:
    """Keep as a record that the part gives wrong numbers, so that no later search chooses it."""
    candidate = wrong.candidate
    backend = next(each for each in measurer.backends if each.name == candidate.backend)
    function = extract_function(graph, candidate.sub_graph, backend.name)
    measurer.note_failure(
        MeasureRequest(
            workload=workload_of_candidate(graph, candidate),
            module=extract_module(graph, candidate.sub_graph, backend.name),
            backend=backend.name,
            settings=settings_for(backend, function),
        ),
        wrong.reason,
    )


def leave_out(priced: PricedFunction, wrong: Sequence[WrongPart]) -> PricedFunction:
    """Return the function with no price for wrong parts, wherever the model repeats them.

    A backend with several of them is left out altogether.
    """
    graph = priced.graph
    reasons = {
        (each.candidate.backend, workload_of_candidate(graph, each.candidate).fingerprint): each.reason
        for each in wrong
    }
    counts = Counter(each.candidate.backend for each in wrong)
    backends = {each.candidate.backend: each.reason for each in wrong}

    def reason_of(candidate: CandidatePartition) -> str | None:
        if candidate.backend not in backends:
            return None
        if counts[candidate.backend] >= _MAX_WRONG_PARTS:
            return backends[candidate.backend]
        return reasons.get((candidate.backend, workload_of_candidate(graph, candidate).fingerprint))

    prices = [
        price if (reason := reason_of(candidate)) is None else Invalid(reason)
        for candidate, price in zip(priced.candidates, priced.prices, strict=True)
    ]
    return replace(priced, prices=tuple(prices))


def _only_these(
    graph: DataflowGraph, chosen: Sequence[CandidatePartition], positions: Sequence[int]
) -> IRModule:
    """Return the outlined module with the other parts left as plain operators."""
    kept = set(positions)
    return outline_partitions(
        graph,
        [part if position in kept else replace(part, backend=FREE) for position, part in enumerate(chosen)],
    )

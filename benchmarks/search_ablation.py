"""What each phase of the schedule search is worth: leave it out, and see what is lost.

    python -m benchmarks.search_ablation --write

Every variant searches the same hard problems with the same limit on work, so that the figures do not depend
on the machine or what else it does. Whole schedules: 26 problems, of which a variant's loss is the mean, over
the problems, of how much longer its schedule is and how much lower its bound. Repetends: ten problems, and
how much longer the period is, how many proofs are lost, and how much more work the same takes.

`--write` puts the table into docs/schedules.md, between the two lines that say so; `--only` runs some of the
variants.
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.random_placements import random_cases
from tessel.errors import ScheduleError
from tessel.placement import Placement
from tessel.search import MakespanParams, Phase, RepetendParams, RepetendPhase, SearchBudget
from tessel.search.makespan.find_schedule import find_schedule
from tessel.search.repetend.find_repetend import find_repetend
from tessel.shapes import ShapeFunction, make_shape, vshape, zbv
from tessel.validation import check_schedule

DOCUMENT = Path(__file__).parent.parent / "docs" / "schedules.md"
BEGIN = "<!-- The table below is written by `python -m benchmarks.search_ablation --write`. -->"
END = "<!-- End of the table. -->"


@dataclass(frozen=True, slots=True)
class Variant:
    """A search without one of its parts.

    Attributes:
        phase: what is left out, as the table names it.
        module: where it is.
        source: what it is after, as the table names it.
        makespan: parameters of the search for whole schedules; None where only repetends are concerned.
        repetend: parameters of the search for repetends; None where only whole schedules are.
        max_copies: copies of a repetend.
    """

    phase: str
    module: str
    source: str
    makespan: MakespanParams | None = None
    repetend: RepetendParams | None = None
    max_copies: int = 3


def _without(phase: Phase) -> MakespanParams:
    return MakespanParams(left_out=frozenset({phase}))


def _without_in_repetends(phase: RepetendPhase) -> RepetendParams:
    return RepetendParams(left_out=frozenset({phase}))


VARIANTS = (
    Variant(
        Phase.HANDWRITTEN, "makespan.rule_schedules", "the rules of the first table",
        makespan=_without(Phase.HANDWRITTEN),
    ),
    Variant(
        Phase.LIST_SCHEDULING, "makespan.list_scheduling", "Giffler and Thompson 1960; Dijkstra, EWD 623",
        makespan=_without(Phase.LIST_SCHEDULING),
    ),
    Variant(
        Phase.LIMITS_IN_FLIGHT, "makespan.limits_in_flight", "Qi et al., Controllable Memory, 2024",
        makespan=_without(Phase.LIMITS_IN_FLIGHT),
    ),
    Variant(
        Phase.REPETENDS, "makespan.warmup_cooldown", "Lin et al., HPCA 2024",
        makespan=_without(Phase.REPETENDS),
    ),
    Variant(
        "repetends of three copies", "makespan.warmup_cooldown", "–",
        makespan=MakespanParams(repetend_copies=(1,)),
    ),
    Variant(
        Phase.TABU_SEARCH, "makespan.tabu_search",
        "Nowicki and Smutnicki 1996; Balas and Vazacopoulos 1998; Taillard 1994",
        makespan=_without(Phase.TABU_SEARCH),
    ),
    Variant(
        Phase.KICKS, "makespan.iterated_local_search", "Lourenço, Martin and Stützle 2003",
        makespan=_without(Phase.KICKS),
    ),
    Variant(
        "several elites", "makespan.iterated_local_search", "–", makespan=MakespanParams(num_elites=1),
    ),
    Variant(
        Phase.OPTION_FLIPS, "makespan.option_flips", "–", makespan=_without(Phase.OPTION_FLIPS),
    ),
    Variant(
        Phase.DECISION_DIAGRAMS, "makespan.decision_diagram", "Andersen et al., CP 2007; Bergman et al. 2016",
        makespan=_without(Phase.DECISION_DIAGRAMS),
    ),
    Variant(
        Phase.EXACT, "makespan.exact.exact_search", "Held and Karp 1962; Klein and Scholl 1999",
        makespan=_without(Phase.EXACT),
    ),
    Variant(
        Phase.CP_SAT,
        "makespan.constraint_model",
        "Perron and Furnon, OR-Tools",
        makespan=_without(Phase.CP_SAT),
    ),
    Variant(
        RepetendPhase.NESTED_CHAINS, "repetend.chain_dp.nested_chain_dp", "–",
        repetend=_without_in_repetends(RepetendPhase.NESTED_CHAINS),
    ),
    Variant(
        RepetendPhase.CROSSING_CHAINS, "repetend.chain_dp.crossing_chain_dp", "–",
        repetend=_without_in_repetends(RepetendPhase.CROSSING_CHAINS),
    ),
    Variant(
        "orders before slots", "repetend.branch_and_bound", "–",
        repetend=RepetendParams(max_blocks_ordered_first=0),
    ),
    Variant(
        RepetendPhase.LATENCY, "repetend.latency", "–",
        makespan=None, repetend=_without_in_repetends(RepetendPhase.LATENCY),
    ),
    Variant(
        "several copies", "repetend.find_repetend", "–", repetend=RepetendParams(), max_copies=1,
    ),
)  # fmt: skip
"""The rows of the table."""


@dataclass(frozen=True, slots=True)
class Case:
    """One problem; a repetend has no micro-batches."""

    name: str
    placement: Placement
    memory: tuple[int, ...] | int
    micro_batches: int = 0


def makespan_cases() -> Iterator[Case]:
    """Yield 26 problems whose first schedules and first bounds are apart."""
    for case in random_cases(12, 7):
        yield Case(case.name, case.placement, case.memory, case.micro_batches)
    for shape, memory in (("xshape", 4), ("mshape", 6), ("nnshape", 6), ("kshape", 4)):
        yield Case(f"{shape} 4x16", make_shape(shape, 4), memory, 16)
    for devices, micro_batches, memory in ((4, 8, 16), (4, 8, 8), (8, 16, 32), (8, 16, 11)):
        yield Case(f"zbv {devices}x{micro_batches} {memory}", _split(zbv, devices), memory, micro_batches)
    yield Case("vshape split 8x16", _split(vshape, 8), 16, 16)
    yield Case("vshape 4x12 tight", vshape(4, forward_span=[3, 5, 4, 6], lag=1), 2, 12)
    for shape, memory in (("vshape", 3), ("zbv", 4), ("interleaved", 6), ("nnshape", 4)):
        placement = make_shape(
            shape, 4, choose_backward=True, backward_span=6, backward_input_span=4, backward_weight_span=3,
            forward_span=2, lag=1,
        )  # fmt: skip
        yield Case(f"{shape} choice 4x8", placement, memory, 8)


def _split(shape: ShapeFunction, devices: int) -> Placement:
    return shape(
        devices, split_backward=True, forward_span=10, backward_input_span=11, backward_weight_span=9, lag=1,
        forward_memory=2, backward_memory=-2,
    )  # fmt: skip


def repetend_cases() -> Iterator[Case]:
    """Yield ten problems."""
    for shape, devices, memory in (
        ("nnshape", 4, 4), ("nnshape", 16, 12), ("mshape", 24, 12), ("xshape", 8, 5), ("xshape", 16, 9),
        ("vshape", 24, 13), ("kshape", 8, 5), ("vshape", 4, 3),
    ):  # fmt: skip
        yield Case(f"{shape} {devices} {memory}", make_shape(shape, devices), memory)
    yield Case("zbv 4 8", _split(zbv, 4), 8)
    choice = vshape(4, choose_backward=True, backward_span=6, backward_input_span=4, backward_weight_span=3)
    yield Case("vshape choice 4 3", choice, 3)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one search found: its value, a bound on it, the work it took, and a repetend's latency."""

    value: float
    bound: float
    work: float
    found_by: str
    latency: int = 0

    @property
    def is_proven(self) -> bool:
        return self.value == self.bound


def find_makespans(cases: Sequence[Case], params: MakespanParams, work: float) -> list[Answer]:
    """Search every case and check the schedules."""
    answers = []
    for case in cases:
        budget = SearchBudget(work, None)
        found = find_schedule(
            case.placement, micro_batches=case.micro_batches, memory=case.memory, budget=budget, params=params
        )
        check_schedule(found)
        answers.append(Answer(found.makespan, found.lower_bound, budget.operations, found.found_by))
    return answers


def find_periods(cases: Sequence[Case], variant: Variant, work: float) -> list[Answer]:
    """Search every case; the value is steps for each micro-batch, infinite where none was found."""
    answers = []
    for case in cases:
        budget = SearchBudget(work, None)
        try:
            found = find_repetend(
                case.placement, memory=case.memory, max_copies=variant.max_copies, budget=budget,
                params=variant.repetend,
            )  # fmt: skip
        except ScheduleError:
            answers.append(Answer(math.inf, 0, budget.operations, "none"))
            continue
        rate, least = float(found.rate), float(found.least_rate)
        latency = max(max(row) - min(row) for row in found.starts)
        answers.append(Answer(rate, least, budget.operations, found.found_by, latency))
    return answers


def _change(ratios: Sequence[float]) -> str:
    """The mean of ratios as a change in per cent; those that are not finite are counted apart."""
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    change = 100 * (math.exp(statistics.fmean(map(math.log, finite))) - 1) if finite else 0.0
    missing = len(ratios) - len(finite)
    return f"{change:+.2f} %" + (f", none found {missing}x" if missing else "")


def makespan_loss(full: Sequence[Answer], found: Sequence[Answer]) -> str:
    """Return the cell of the table: how much longer, in how many cases, and what the bounds lose."""
    longer = sum(one.value > other.value for one, other in zip(found, full, strict=True))
    shorter = sum(one.value < other.value for one, other in zip(found, full, strict=True))
    length = _change([one.value / other.value for one, other in zip(found, full, strict=True)])
    bound = _change([one.bound / other.bound for one, other in zip(found, full, strict=True)])
    proofs = sum(each.is_proven for each in found) - sum(each.is_proven for each in full)
    return f"{length} (longer {longer}x, shorter {shorter}x), bound {bound}, proofs {proofs:+d}"


def repetend_loss(full: Sequence[Answer], found: Sequence[Answer]) -> str:
    """Return the cell of the table for repetends."""
    period = _change([one.value / other.value for one, other in zip(found, full, strict=True)])
    proofs = sum(each.is_proven for each in found) - sum(each.is_proven for each in full)
    work = math.exp(
        statistics.fmean(math.log(one.work / other.work) for one, other in zip(found, full, strict=True))
    )
    latency = _change(
        [
            one.latency / other.latency
            for one, other in zip(found, full, strict=True)
            if one.value == other.value
        ]
    )
    return f"period {period}, proofs {proofs:+d}, work x{work:.2f}, latency {latency}"


def table(work: float, only: str) -> Iterator[str]:
    """Yield the lines of the table."""
    cases, cyclic = list(makespan_cases()), list(repetend_cases())
    whole = find_makespans(cases, MakespanParams(), work)
    full = Variant("", "", "", repetend=RepetendParams())
    periods = find_periods(cyclic, full, work)
    yield f"{len(cases)} whole schedules and {len(cyclic)} repetends, {work:g} units of work each."
    yield ""
    yield "| phase | module under `tessel.search` | after | lost without it |"
    yield "|---|---|---|---|"
    for variant in VARIANTS:
        if only not in variant.phase:
            continue
        importlib.import_module(f"tessel.search.{variant.module}")
        if variant.makespan is not None:
            loss = makespan_loss(whole, find_makespans(cases, variant.makespan, work))
        else:
            loss = repetend_loss(periods, find_periods(cyclic, variant, work))
        yield f"| {variant.phase} | `{variant.module}` | {variant.source} | {loss} |"
    yield ""
    won = sorted({answer.found_by for answer in whole})
    yield (
        "Best schedules found by: "
        + ", ".join(f"{name} {sum(answer.found_by == name for answer in whole)}" for name in won)
        + f"; {sum(answer.is_proven for answer in whole)} of {len(whole)} proven optimal."
    )


def write_table(lines: Sequence[str]) -> None:
    """Put the table into the document."""
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=float, default=0.5, help="units of work of each search")
    parser.add_argument("--only", default="", help="run the variants whose phase contains this")
    parser.add_argument("--write", action="store_true", help="put the table into docs/schedules.md")
    arguments = parser.parse_args()
    lines = []
    for line in table(arguments.work, arguments.only):
        print(line, flush=True)
        lines.append(line)
    if arguments.write and not arguments.only:
        write_table(lines)


if __name__ == "__main__":
    main()

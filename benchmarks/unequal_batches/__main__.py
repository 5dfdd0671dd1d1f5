"""How well are recorded steps replayed, what would have made them shorter, and how good are searches?

    python -m benchmarks.unequal_batches [--traces AR.csv.gz SE.csv.gz ST.csv.gz] [--count 10] [--work 5]

Traces are the three of ByteDance-Seed/StragglerAnalysis (OSDI 2025, Apache-2.0), as CSV; none is part of this
repository. *One mean a block* is all that a table without classes can say: every block of a stage as long
as its mean. *Classes* are of equal numbers of micro-batches, by their time over all stages; a block is as
long as the mean of its stage and class. Random batches have lengths of a log-normal law (sigma 0.5), on
chains of four stages whose backwards take twice a forward.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

import numpy as np

from tessel.batches import Batch, scaled_class
from tessel.batches.balancers import in_turns, largest_differencing, longest_first
from tessel.checking.trace_assessment import assess_trace
from tessel.checking.trace_replay import TraceReplay
from tessel.placement import Placement
from tessel.profiles.step_trace import FloatArray, StepTrace, read_step_trace
from tessel.search.batches.assignment import assign_micro_batches
from tessel.search.batches.find_batch_schedule import find_batch_schedule
from tessel.search.batches.sequences import RuleReplays, rule_sequences
from tessel.search.budget import SearchBudget, processor_clock
from tessel.shapes import vshape

STAGES, MICRO_BATCHES, REPLICAS = 4, 8, 32
STEPS_A_SPAN = 100
CLASSES = (1, 4, 8, 16)

PUBLISHED = {
    "AR": (1.973, {"stage 0": 1.979, "replica 0": 1.973}),
    "SE": (1.537, {"stage 1": 1.435, "stage 0": 1.168, "replica 8": 1.204, "replica 27": 1.190}),
    "ST": (1.179, {"stage 3": 1.232, "replica 1": 1.178}),
}
"""Slowdowns of the published result files, `data/result-*.json`: of the job, and of single stages and
replicas."""


def of_classes(trace: StepTrace, count: int) -> FloatArray:
    """Return durations by stage and class, of so many classes; one is one mean a block."""
    whole = trace.spans_s.sum(axis=3)
    edges = np.quantile(whole, np.linspace(0, 1, count + 1)[1:-1])
    own = np.searchsorted(edges, whole, side="right")
    found = np.empty_like(trace.spans_s)
    for each in range(count):
        found[own == each] = trace.spans_s[own == each].mean(axis=0)
    return found


def report_trace(path: Path, work: float) -> None:
    trace = read_step_trace(path)
    replayed = TraceReplay.of(trace)
    print(
        f"\n## {path.name}: {len(trace.steps)} steps, {len(trace.replicas)} replicas, {trace.stages} stages"
    )
    errors = np.abs(replayed.pipeline_s / trace.pipeline_s - 1)
    print(f"replayed: mean {errors.mean():.2%}, worst {errors.max():.2%} of {errors.size} spans")
    for count in CLASSES:
        steps = replayed.step_s(of_classes(trace, count))
        off = np.abs(steps / trace.pipeline_s.max(axis=1) - 1)
        what = "one mean a block" if count == 1 else f"{count} classes"
        print(f"{what}: steps off by {off.mean():.1%} in the mean, {off.max():.1%} at worst")
    began = processor_clock()
    found = assess_trace(trace, budget=SearchBudget(work))
    print(f"slowdown {found.slowdown:.3f} ({processor_clock() - began:.1f} s of processor)")
    name = next((each for each in PUBLISHED if each in path.name), None)
    if name is not None:
        ours = {f"stage {each.stage}": each.slowdown for each in found.stages}
        ours |= {f"replica {each.replica}": each.slowdown for each in found.replicas}
        total, parts = PUBLISHED[name]
        named = ", ".join(f"{part} {ours[part]:.3f} ({value:.3f})" for part, value in parts.items())
        print(f"published {total:.3f}; ours (published): {named}")
    for change in found.changes:
        ideal = " (ideal)" if change.is_ideal else ""
        print(
            f"| {change.change}{ideal} | {change.saves_ratio:.1%} | {change.least:.1%} | {change.most:.1%} |"
        )


def random_batch(placement: Placement, micro_batches: int, seed: int) -> Batch:
    factors = np.round(np.random.default_rng(seed).lognormal(0, 0.5, micro_batches), 2)
    names = list(dict.fromkeys(map(str, factors)))
    classes = tuple(scaled_class(placement, name, float(name)) for name in names)
    return Batch(classes=classes, sequence=tuple(names.index(str(factor)) for factor in factors))


def report_random(count: int, work: float) -> None:
    placement = vshape(STAGES, forward_span=STEPS_A_SPAN, backward_span=2 * STEPS_A_SPAN)
    rules = RuleReplays(placement, ("1f1b",))
    print(f"\n## {count} batches of {MICRO_BATCHES} on {STAGES} stages, {work:g} units of work")
    print("| seed | 1F1B as given | longest first | searched | bound | gap | processor s |")
    rows = []
    for seed in range(count):
        batch = random_batch(placement, MICRO_BATCHES, seed)
        by_hand = rule_sequences(rules, batch, None)
        given = next(e.makespan for e in by_hand if e.sequence == tuple(range(MICRO_BATCHES)))
        longest = tuple(np.argsort(-batch.spans.sum(axis=1), kind="stable").tolist())
        first = next(e.makespan for e in by_hand if e.sequence == longest)
        began = processor_clock()
        found = find_batch_schedule(placement, batch, budget=SearchBudget(work))
        took = processor_clock() - began
        rows.append((given / found.makespan, first / found.makespan, found.gap))
        print(
            f"| {seed} | {given} | {first} | {found.makespan} | {found.lower_bound} | {found.gap:.1%} | "
            f"{took:.1f} |"
        )
    columns = [sorted(column) for column in zip(*rows, strict=True)]
    for what, column in zip(("as given", "longest first", "gap"), columns, strict=True):
        print(f"{what}: median {median(column):.3f}, {column[0]:.3f} to {column[-1]:.3f}")


def report_assignments(count: int, seconds: float) -> None:
    placement = vshape(STAGES, forward_span=STEPS_A_SPAN, backward_span=2 * STEPS_A_SPAN)
    rules = RuleReplays(placement, ("1f1b",))
    print(f"\n## {REPLICAS} replicas x {MICRO_BATCHES} x {STAGES} stages, {seconds:g} s of processor")
    print("| seed | as given | in turns | longest first | differencing | found | bound | gap | s |")
    for seed in range(count):
        batch = random_batch(placement, REPLICAS * MICRO_BATCHES, seed)
        work = batch.spans.sum(axis=1).tolist()
        balanced = [
            max(
                next(
                    each.makespan
                    for each in rule_sequences(rules, batch.taken(group), None)
                    if each.sequence == tuple(range(MICRO_BATCHES))
                )
                for group in balance(work, REPLICAS)
            )
            for balance in (in_turns, longest_first, largest_differencing)
        ]
        budget = SearchBudget(work_limit=None, time_limit_s=seconds, clock=processor_clock)
        began = time.process_time()
        found = assign_micro_batches(placement, batch, replicas=REPLICAS, budget=budget)
        print(
            f"| {seed} | {found.given} | {' | '.join(map(str, balanced))} | {found.makespan} | "
            f"{found.lower_bound} | {found.gap:.1%} | {time.process_time() - began:.1f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--traces", type=Path, nargs="*", default=[])
    parser.add_argument("--count", type=int, default=10, help="random batches")
    parser.add_argument("--work", type=float, default=5.0, help="units of a search")
    parser.add_argument("--seconds", type=float, default=5.0, help="processor seconds of an assignment")
    arguments = parser.parse_args()
    for path in arguments.traces:
        report_trace(path, arguments.work)
    if arguments.count:
        report_random(arguments.count, arguments.work)
        report_assignments(max(1, arguments.count // 2), arguments.seconds)


if __name__ == "__main__":
    main()

"""Report of `tessel check --trace`: a few lines, the changes worth most, and the same as a document."""

from __future__ import annotations

from scripts.documents.traces import PrintedPathShare, TraceChecked
from scripts.terminal import console
from tessel.checking.trace_assessment import Straggler, TraceAssessment, TraceChange

NUM_SHOWN = 3
"""Stragglers of a kind that are named."""

WORTH_NAMING = 1.01
"""Slowdown from which a straggler is named."""


FAR_OFF = 0.05
"""Mean error of replays from which the trace is doubted; of the published jobs it is at most 0.8 %."""


def print_trace_assessment(assessment: TraceAssessment) -> None:
    """Print the assessment in sentences, and the changes as a table."""
    trace = assessment.trace
    console.print_line(
        f"{trace.name}: {len(trace.steps)} steps of {len(trace.replicas)} replicas, {trace.stages} stages "
        f"and {trace.micro_batches} micro-batches"
    )
    console.print_line(
        f"step {assessment.step_s:.3f} s, of which the pipeline {assessment.pipeline_s:.3f} s, replayed "
        f"within {assessment.error_mean:.2%} (worst {assessment.error_worst:.2%})"
        + (": far off, as where a stage is missing in the trace" if assessment.error_mean > FAR_OFF else "")
    )
    console.print_line(
        f"stragglers make the pipeline {assessment.slowdown:.2f} times as long as with equal blocks "
        f"({assessment.ideal_s:.3f} s, predicted)"
    )
    for what, stragglers in (
        ("stages", assessment.stages),
        ("replicas", assessment.replicas),
        ("workers", assessment.workers),
    ):
        named = [each for each in stragglers if each.slowdown >= WORTH_NAMING][:NUM_SHOWN]
        if named:
            console.print_line(f"{what} alone: {', '.join(map(_straggler, named))}")
    cause = ", as where lengths differ" if assessment.lengths_explain else ""
    slowest = assessment.slow_micro_batches[0]
    console.print_line(
        f"micro-batches of a stage vary by {assessment.spread:.1%} (forward and backward correlate by "
        f"{assessment.length_correlation:.2f}{cause}); the slowest is {slowest.ratio:.2f} times the mean, "
        f"micro-batch {slowest.micro_batch} of replica {slowest.replica} in step {slowest.step}"
    )
    shares = ", ".join(
        f"{'transfers' if stage < 0 else f'stage {stage}'} {share:.0%}"
        for stage, share in assessment.path_shares
        if share >= 0.005
    )
    console.print_line(
        f"critical path of step {assessment.path_step}, replica {assessment.path_replica}, "
        f"{len(assessment.path)} blocks: {shares}"
    )
    rows = [_row(each) for each in assessment.changes if each.saves_ratio > 0]
    if not rows:
        console.print_line("no single change that was tried saves anything")
        return
    console.print_line()
    console.print_table("", ["change, each alone (predicted)", "pipeline", "saves", "in a step"], rows)


def trace_document(assessment: TraceAssessment) -> TraceChecked:
    """Return what is printed with --json."""
    trace = assessment.trace
    return TraceChecked(
        trace=trace.name,
        num_steps=len(trace.steps),
        replicas=len(trace.replicas),
        stages=trace.stages,
        micro_batches=trace.micro_batches,
        step_s=assessment.step_s,
        pipeline_s=assessment.pipeline_s,
        ideal_s=assessment.ideal_s,
        slowdown=assessment.slowdown,
        error_mean=assessment.error_mean,
        error_worst=assessment.error_worst,
        by_stage=assessment.stages,
        by_replica=assessment.replicas,
        by_worker=assessment.workers,
        length_correlation=assessment.length_correlation,
        spread=assessment.spread,
        slow_micro_batches=assessment.slow_micro_batches,
        path_step=assessment.path_step,
        path_replica=assessment.path_replica,
        path_blocks=len(assessment.path),
        path_shares=tuple(
            PrintedPathShare(stage=None if stage < 0 else stage, share=share)
            for stage, share in assessment.path_shares
        ),
        changes=assessment.changes,
    )


def _straggler(each: Straggler) -> str:
    names = [
        *(() if each.replica is None else (f"replica {each.replica}",)),
        *(() if each.stage is None else (f"stage {each.stage}",)),
    ]
    return f"{' '.join(names)} {each.slowdown:.2f} x"


def _row(each: TraceChange) -> list[str]:
    return [
        each.change + (" (ideal)" if each.is_ideal else ""),
        f"{each.predicted_pipeline_s:.3f} s",
        f"{each.saves_ratio:.1%}",
        f"{each.least:.1%} to {each.most:.1%}",
    ]

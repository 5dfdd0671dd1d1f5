"""Report of `tessel check`: a few lines, the changes worth most, and the same as a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scripts.terminal import console
from tessel.jobs.shown.formatting import format_bytes, format_us

if TYPE_CHECKING:
    from scripts.documents.checks import Checked, PrintedAdvice, PrintedOverlap
    from tessel.checking.advice import Advice
    from tessel.checking.assessment import Assessment
    from tessel.checking.case import Case, Simulated
    from tessel.checking.overlap import Overlapped

MAX_SHARES = 3
"""Devices of the critical path that are named."""


def print_assessment(assessment: Assessment) -> None:
    """Print the assessment in sentences, and the advice as a table."""
    case = assessment.case
    stages = _num_stages(case)
    console.print_line(
        f"{case.name}: {_count(case.placement.devices, 'rank')}, "
        + ("" if stages is None else f"{_count(stages, 'stage')}, ")
        + _count(case.micro_batches, "micro-batch", "micro-batches")
    )
    if assessment.deadlock:
        console.print_line("deadlock: each of these waits for the next, and the last for the first")
        for sentence in assessment.deadlock:
            console.print_line(f"  {sentence}")
    found = assessment.found
    if found is not None:
        console.print_line("no deadlock")
        console.print_line(_memory_line(case, found))
        console.print_line(_length_line(assessment, found))
        console.print_line(_path_line(assessment))
        if assessment.overlapped is not None:
            console.print_line(_overlapped_line(case, assessment.overlapped))
    if assessment.best is not None and (found is None or assessment.deadlock):
        console.print_line(
            f"best order found on these stages: {_length(case, assessment.best.schedule.makespan)}, "
            f"by {assessment.best.schedule.found_by}"
        )
    if found is not None:
        _print_advice(assessment, found)


def assessment_document(assessment: Assessment) -> Checked:
    """Return what is printed with --json."""
    from scripts.documents.checks import Checked, PrintedTask

    case, found, best = assessment.case, assessment.found, assessment.best
    makespan = None if found is None else found.schedule.makespan
    static = case.static_bytes or (0,) * case.placement.devices
    names = [block.name for block in case.placement.blocks]
    return Checked(
        file=case.name,
        devices=case.placement.devices,
        stages=_num_stages(case),
        micro_batches=case.micro_batches,
        deadlock=bool(assessment.deadlock),
        cycle=assessment.deadlock,
        fits=assessment.fits,
        memory=None if found is None else found.memory,
        limits=None
        if case.limits is None
        else tuple(room + held for room, held in zip(case.limits, static, strict=True)),
        makespan=makespan,
        lower_bound=assessment.lower_bound,
        makespan_ms=_ms(case, makespan),
        lower_bound_ms=_ms(case, assessment.lower_bound),
        step_ms=None if found is None or case.step is None else found.length / 1000,
        best=None if best is None else best.schedule.makespan,
        best_found_by=None if best is None else best.schedule.found_by or "as given",
        ratio_to_best=None
        if best is None or makespan is None or not best.schedule.makespan
        else makespan / best.schedule.makespan,
        critical_path=tuple(
            PrintedTask(block=names[task.block_index], micro_batch=task.micro_batch)
            for task in assessment.critical_path
        ),
        shares=assessment.shares,
        advice=tuple(_advice_document(case, each) for each in assessment.advice),
        overlap=None if assessment.overlapped is None else _overlap_document(case, assessment.overlapped),
    )


def _overlap_document(case: Case, found: Overlapped) -> PrintedOverlap:
    from scripts.documents.checks import PrintedOverlap

    return PrintedOverlap(
        factor=found.factor,
        pairs=found.num_pairs,
        pairs_apart=found.num_apart,
        length_ms=None if case.step_us is None else found.length / 1000,
        length_steps=round(found.length) if case.step_us is None else None,
    )


def _advice_document(case: Case, advice: Advice) -> PrintedAdvice:
    from scripts.documents.checks import PrintedAdvice

    return PrintedAdvice(
        change=advice.change,
        kind=advice.kind,
        saves_ms=None if case.step_us is None else advice.saves / 1000,
        saves_steps=round(advice.saves) if case.step_us is None else None,
        saves_ratio=advice.saves_ratio,
        fits=advice.fits,
    )


def _memory_line(case: Case, found: Simulated) -> str:
    in_bytes = case.static_bytes is not None
    fullest = max(range(len(found.memory)), key=lambda device: found.memory[device])
    if case.limits is None:
        return f"no memory limit; device {fullest} holds most, {_held(found.memory[fullest], in_bytes)}"
    static = case.static_bytes or (0,) * len(found.memory)
    limits = [room + held for room, held in zip(case.limits, static, strict=True)]
    excess = [device for device, held in enumerate(found.memory) if held > limits[device]]
    if excess:
        worst = max(excess, key=lambda device: found.memory[device] - limits[device])
        return (
            f"does not fit: device {worst} needs {_held(found.memory[worst], in_bytes)} of "
            f"{_held(limits[worst], in_bytes)}"
            + (f", {len(excess)} devices in all do not fit" if len(excess) > 1 else "")
        )
    tightest = min(range(len(limits)), key=lambda device: limits[device] - found.memory[device])
    return (
        f"fits: device {tightest} needs most, {_held(found.memory[tightest], in_bytes)} of "
        f"{_held(limits[tightest], in_bytes)}"
    )


def _length_line(assessment: Assessment, found: Simulated) -> str:
    from tessel.jobs.shown.plan_tables import step_words
    from tessel.planning.costs.training_step import estimate_step

    case, schedule = assessment.case, found.schedule
    text = f"pipeline {_length(case, schedule.makespan)}"
    if case.step is not None:
        text = f"step {step_words(estimate_step(case.step, schedule))}"
    best = assessment.best
    if best is not None:
        if best.schedule.makespan < schedule.makespan:
            text += (
                f"; {schedule.makespan / best.schedule.makespan - 1:.1%} above the best order found on these "
                f"stages ({_length(case, best.schedule.makespan)}, {best.schedule.found_by})"
            )
        else:
            text += "; no better order was found on these stages"
    if assessment.lower_bound >= schedule.makespan:
        return f"{text}, and none exists" if best is not None else text
    return f"{text}; at most {schedule.makespan / max(1, assessment.lower_bound) - 1:.1%} above the bound"


def _overlapped_line(case: Case, found: Overlapped) -> str:
    """Say what the file's own order takes where pairs overlap; all other lines are without."""
    kind = "pipeline" if case.step is None else "training step"
    length = f"{found.length:g} steps" if case.step_us is None else format_us(found.length)
    pairs = _count(found.num_pairs, "pair")
    apart = f"; {found.num_apart} more wait for each other" if found.num_apart else ""
    return (
        f"with {pairs} of OVERLAP_F_B at {found.factor:g} of their sum: {kind} {length}{apart}; all other "
        "figures are of blocks one after the other"
    )


def _path_line(assessment: Assessment) -> str:
    shown = [
        f"{'hops' if each.device is None else f'device {each.device}'} {each.share:.0%}"
        for each in assessment.shares[:MAX_SHARES]
    ]
    return f"critical path of {len(assessment.critical_path)} blocks: {', '.join(shown)}"


def _print_advice(assessment: Assessment, found: Simulated) -> None:
    case = assessment.case
    if not assessment.advice:
        console.print_line("no single change that was tried saves anything")
        return
    rows = [
        [
            each.change,
            f"{-each.saves_ratio:+.1%}",
            _saved(case, each),
            *([] if found.fits else ["yes" if each.fits else "no"]),
        ]
        for each in assessment.advice
    ]
    columns = ["change, each alone", "step", "saves", *([] if found.fits else ["fits"])]
    console.print_line()
    console.print_table("", columns, rows)


def _saved(case: Case, advice: Advice) -> str:
    if case.step_us is None:
        return f"{advice.saves:.0f} steps"
    sign = "-" if advice.saves < 0 else ""
    return f"{sign}{format_us(abs(advice.saves))}"


def _length(case: Case, makespan: int) -> str:
    return f"{makespan} steps" if case.step_us is None else format_us(makespan * case.step_us)


def _ms(case: Case, makespan: int | None) -> float | None:
    return None if case.step_us is None or makespan is None else makespan * case.step_us / 1000


def _held(amount: int, in_bytes: bool) -> str:
    return format_bytes(amount) if in_bytes else f"{amount} units"


def _count(number: int, one: str, several: str | None = None) -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


def _num_stages(case: Case) -> int | None:
    from tessel.handwritten.construction.stages import NotAPipelineError, read_pipeline

    try:
        return len(read_pipeline(case.placement).stages)
    except NotAPipelineError:
        return None

"""Programs of one part, onnxruntime's run of a whole file or export, and the choice between these and a mix.

Small networks take longer on several threads than on one, which has nobody to wake: the same run on fewer
threads stands for choice, too. What is surely ahead is taken (`tessel.compiling.choosing`). Files that cannot
be imported are run so, too. Checked in tests/tuner/backends/onnxruntime/test_whole_file.py.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tessel.compiling.choosing import choose, sampler
from tessel.compiling.program import Program, ProgramSource
from tessel.compiling.racing import exported
from tessel.compiling.several_shapes import first_difference
from tuner.backends.registry import make_backend
from tuner.errors import TunerError
from tuner.frontend import Model
from tuner.frontend.values import random_inputs
from tuner.plan import Figure, PartitionPlan
from tuner.runtime.native import aligned_copy
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target
from tuner.tuning.compile_mix import CompiledMix, ProgramFacts, compile_mix
from tuner.tuning.search.options import PartitionOptions
from tuner.tuning.session import Report, Session

logger = logging.getLogger(__name__)

_LEAST_EXPORTED_S = 3e-4
"""What a call of a module's mix takes, at the least, for an export to be tried, which takes seconds."""

_LONGEST_ON_FEWER_S = 0.05
"""What a call takes, at the most, for fewer threads to be tried: to wake threads takes less than 1 ms."""

_SLOWER = 1.1
"""Times as long on half of the threads, beyond which no fewer are tried."""

_COMPARED = 3
"""Drawn inputs for which a mix has to give what the file's operators do."""


def whole_programs(model: Model, session: Session, mix: Program) -> Iterator[Program]:
    """Yield programs that are one call of a model's file or export, where onnxruntime may run all of it."""
    names = {backend.name for backend in session.backends}
    if "onnxruntime" not in names or session.assignments:
        return
    inputs = [aligned_copy(array) for array in random_inputs(model, session.seed)]
    try:
        if model.source is None and _shortest_s(partial(mix.run, inputs)) < _LEAST_EXPORTED_S:
            return
        yield from whole_runs(model, session.target, session.seed, mix.source)
    except Exception:  # foreign code: onnxruntime lacks an operator, or a type
        logger.debug("onnxruntime does not run the whole file", exc_info=True)


def program_of_unimported(
    source: Any, options: PartitionOptions, error: TunerError
) -> tuple[Program, list[np.ndarray]]:
    """Return the program of a file that was not imported, which onnxruntime runs as a whole, and inputs.

    Raises:
        TunerError: it may not run it: `error`.
    """
    target = resolve_target(options.target, num_threads=options.threads)
    backend = make_backend("onnxruntime")
    is_wanted = options.backends is None or backend.name in options.backends
    is_file = isinstance(source, str | Path) and str(source).endswith(".onnx")
    if not is_file or not is_wanted or options.assign or options.train or backend.unavailable_reason(target):
        raise error
    from tuner.backends.onnxruntime.whole_file import unimported_file  # noqa: PLC0415 - needs onnx

    model = unimported_file(Path(source), options.shape or {}, options.value or {}, options.seed)
    logger.warning("%s. Now onnxruntime runs the whole file", error)
    programs = list(whole_runs(model, target, options.seed))
    return fastest(programs, model, options.seed, Report()), random_inputs(model, options.seed)


def fastest(
    wholes: Sequence[Program], model: Model, seed: int, report: Report, *, mix: Program | None = None
) -> Program:
    """Return the fastest of programs as they are called in turn: the mix where it is surely ahead.

    Where the first runs the user's file as a whole, it also says what is right: of a quantised model, a mix
    may round to the other side. An export of a module does not.
    """
    programs = [*wholes, *([] if mix is None else [mix])]
    if len(programs) == 1:
        return programs[0]
    drawn = [[aligned_copy(array) for array in random_inputs(model, seed + at)] for at in range(_COMPARED)]
    if mix is not None and not _are_alike(mix, wholes[0], drawn):
        if model.source is None or not wholes[0].compiled.machines.takes_arrays:
            return mix
        report.on_note("onnxruntime runs all of it: results of the mix are others")
        return fastest(wholes, model, seed, report)
    num_threads = programs[0].manifest.num_threads
    samplers = [sampler(partial(program.run, drawn[0]), num_threads) for program in programs]
    choice = choose(samplers, clock=time.process_time, rng=np.random.default_rng(seed))
    best = programs[choice.best]
    if choice.ratios is None:
        report.on_note(
            f"other programs kept {num_threads} threads from the processor in every round, so that none "
            "was surely ahead: onnxruntime runs all of it; compile while the machine is idle"
        )
    elif mix is not None and best is not mix:
        report.on_note(f"onnxruntime runs all of it, in {choice.ratios[-1]:.2f} of the time of the mix")
    return best.measured(choice.latency_us)


def _are_alike(mix: Program, whole: Program, drawn: Sequence[Sequence[np.ndarray]]) -> bool:
    """Say whether two programs have the same results."""
    return all(first_difference(mix.run(inputs), whole.run(inputs)) is None for inputs in drawn)


def program_of(compiled: CompiledMix, model: Model, source: ProgramSource | None = None) -> Program:
    """Return what is called, which gives results in the module's own classes."""
    exported = getattr(model.reference, "program", None)
    results = None
    if exported is not None:
        from tuner.frontend.torch.call_structure import own_results  # noqa: PLC0415 - needs torch

        results = own_results(exported, compiled.program.manifest.call.results)
        reference: Any = model.reference
        source = source or ProgramSource(module=reference.module, args=reference.examples)
    return Program(compiled.program, own_results=results, write_library=compiled.write_library, source=source)


def whole_runs(
    model: Model, target: Target, seed: int, source: ProgramSource | None = None
) -> Iterator[Program]:
    """Yield the program that is one call of a file, where that is as it was, or of a module's export.

    Then the same on half of the target's threads, and half of those, until that takes longer.
    """
    inputs = [aligned_copy(array) for array in random_inputs(model, seed)]
    written = None
    if model.source is None and source is not None and source.module is not None:
        written = exported(source.module, source.args, source.kwargs)
    num_threads, shortest_s = target.num_threads, math.inf
    while num_threads:
        program = _whole_run(model, target, seed, source, written, num_threads)
        if program is None:
            return
        took_s = _shortest_s(partial(program.run, inputs))
        if took_s > _SLOWER * shortest_s:
            return
        yield program
        if took_s > _LONGEST_ON_FEWER_S:
            return
        num_threads, shortest_s = num_threads // 2, took_s


def _whole_run(
    model: Model,
    target: Target,
    seed: int,
    source: ProgramSource | None,
    written: bytes | None,
    num_threads: int,
) -> Program | None:
    """Return one call of a file, or of an export that was written, on some of the target's threads."""
    from tuner.backends.onnxruntime.whole_file import export_as_call, file_as_call  # noqa: PLC0415 - needs onnx

    if written is None:
        called = file_as_call(model, num_threads)
    else:
        called = export_as_call(model, written, num_threads)
    if called is None:
        return None
    fewer = "" if num_threads == target.num_threads else f", on {num_threads} of {target.num_threads} threads"
    part = PartitionPlan(
        operators=(f"the whole file{fewer}",),
        backend="onnxruntime",
        figure=Figure(latency_us=0.0, source="measured"),
        occurrences=1,
        workload_fingerprint="",
    )
    facts = ProgramFacts(parts=(part,))
    return program_of(compile_mix(called, called.module, (), target, facts=facts, seed=seed), model, source)


def _shortest_s(run: Callable[[], object]) -> float:
    """Return the shortest of a few calls."""
    times = []
    for _ in range(5):
        began_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - began_s)
    return min(times)

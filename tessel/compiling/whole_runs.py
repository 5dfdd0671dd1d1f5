"""Programs of one part, onnxruntime's run of a whole file or export, and the choice between one and a mix.

A mix is taken where it is surely ahead (`tessel.compiling.choosing`). Files that cannot be imported are run
so, too. Checked in tests/tuner/backends/onnxruntime/test_whole_file.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tessel.compiling.choosing import MIX, choose, sampler
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

_COMPARED = 3
"""Drawn inputs for which a mix has to give what the file's operators do."""


def whole_programs(model: Model, session: Session, mix: Program) -> Iterator[Program]:
    """Yield the program that is one call of a model's file or export, where onnxruntime may run all of it."""
    names = {backend.name for backend in session.backends}
    if "onnxruntime" not in names or session.assignments:
        return
    inputs = [aligned_copy(array) for array in random_inputs(model, session.seed)]
    try:
        if model.source is None and _shortest_s(partial(mix.run, inputs)) < _LEAST_EXPORTED_S:
            return
        for program in whole_run(model, session.target, session.seed, mix.source):
            program.run(inputs)
            yield program
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
    (program,) = whole_run(model, target, options.seed)
    return program, random_inputs(model, options.seed)


def fastest(programs: Sequence[Program], model: Model, seed: int, report: Report) -> Program:
    """Return the fastest of programs as they are called in turn: the mix where it is surely ahead.

    Where the second runs the user's file as a whole, it also says what is right: of a quantised model, a mix
    may round to the other side. An export of a module does not.
    """
    if len(programs) == 1:
        return programs[0]
    mix, whole = programs
    drawn = [[aligned_copy(array) for array in random_inputs(model, seed + at)] for at in range(_COMPARED)]
    if any(first_difference(mix.run(inputs), whole.run(inputs)) is not None for inputs in drawn):
        if model.source is None or not whole.compiled.machines.takes_arrays:
            return mix
        report.on_note("onnxruntime runs all of it: results of the mix are others")
        return whole
    num_threads = mix.manifest.num_threads
    samplers = [sampler(partial(program.run, drawn[0]), num_threads) for program in programs]
    choice = choose(*samplers, clock=time.process_time, rng=np.random.default_rng(seed))
    if choice.ratio is None:
        report.on_note(
            f"other programs kept {num_threads} threads from the processor in every round, so that the mix "
            "was not surely ahead: onnxruntime runs all of it; compile while the machine is idle"
        )
    elif choice.best != MIX:
        report.on_note(f"onnxruntime runs all of it, in {choice.ratio:.2f} of the time of the mix")
    return programs[choice.best].measured(choice.latency_us)


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


def whole_run(
    model: Model, target: Target, seed: int, source: ProgramSource | None = None
) -> Iterator[Program]:
    """Yield the program that is one call of a file, where that is as it was, or of a module's export."""
    from tuner.backends.onnxruntime.whole_file import export_as_call, file_as_call  # noqa: PLC0415 - needs onnx

    called = file_as_call(model, target.num_threads)
    if model.source is None and source is not None and source.module is not None:
        written = exported(source.module, source.args, source.kwargs)
        called = export_as_call(model, written, target.num_threads)
    if called is None:
        return
    part = PartitionPlan(
        operators=("the whole file",),
        backend="onnxruntime",
        figure=Figure(latency_us=0.0, source="measured"),
        occurrences=1,
        workload_fingerprint="",
    )
    facts = ProgramFacts(parts=(part,))
    yield program_of(compile_mix(called, called.module, (), target, facts=facts, seed=seed), model, source)


def _shortest_s(run: Callable[[], object]) -> float:
    """Return the shortest of a few calls."""
    times = []
    for _ in range(5):
        began_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - began_s)
    return min(times)

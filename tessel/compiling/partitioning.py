"""The search for the best mix of backends, as one call; with `choosing`, what here sees the tuner.

`tessel partition` and `tessel compile` parse their options, call this, and print. Checked in
tests/tessel/compiling/test_partitioning.py.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from cost_model.gpu.devices import find_gpu
from tessel.compiling.program import Program, ProgramSource
from tessel.compiling.program_file import Fill
from tessel.compiling.several_shapes import ShapedProgram, check_padding
from tessel.compiling.whole_runs import fastest, program_of, program_of_unimported, whole_programs
from tuner.errors import TunerError, UnsupportedOperatorError
from tuner.frontend import Model, load_model
from tuner.frontend.loading import for_training
from tuner.frontend.values import random_inputs
from tuner.targets.resolution import resolve_target
from tuner.tuning.compile_mix import HeldWeights, ProgramFacts, compile_mix, require_compilable
from tuner.tuning.partition_model import PartitionedModel, partition_model, prepared_module
from tuner.tuning.partitioned_function import (
    PartitionedFunction,
    choose_partition,
    partition_plans,
    price_function,
)
from tuner.tuning.predict_partition import predict_partition
from tuner.tuning.search.gpu_prediction import describe_prediction, gpu_model, is_predicted_for_gpu
from tuner.tuning.search.opening import assignments_of, open_search
from tuner.tuning.search.options import DEFAULT_RECORDS, MatchName, PartitionOptions, PriceName
from tuner.tuning.session import Report, TuningProgress

logger = logging.getLogger(__name__)

_LAUNCH_PENALTY_US = 0.3
"""What one more partition costs, where it is not measured."""

ModelSource = Any
"""A torch module, an exported program, the path of a file `.onnx` or `.pt2`, or a name as in `gpt2:tiny`."""

ExampleInputs = Any
"""A tensor, a sequence of inputs by position, or a mapping of them by the names of the module's forward."""


Shapes = Mapping[str, tuple[int, ...]]
"""Static shapes by name of input."""


class CompileKeywords(TypedDict, total=False):
    """Options of `compile` by name; meanings and defaults are those of `PartitionOptions`."""

    target: str
    records: str
    backends: Sequence[str] | None
    trials: int
    threads: int | None
    jobs: int
    seed: int
    price: PriceName
    budget: int | None
    regret: float
    cost_model: Path | None
    assign: Sequence[str]
    prune: bool
    match: MatchName
    tvm_database: Path | None
    fleet: str | None
    proposer: str | None
    language_model: Path | None
    train: bool
    batch: int
    value: Mapping[str, bool | int | float] | None
    graph_level_search: int
    coalesce: bool


class PartitionKeywords(CompileKeywords, total=False):
    """Options of `partition` by name, likewise."""

    shape: Shapes | None


def partition(
    model: ModelSource,
    example_inputs: ExampleInputs = None,
    *,
    on_progress: Callable[[str], None] | None = None,
    **options: Unpack[PartitionKeywords],
) -> PartitionedModel:
    """Choose, by measured latency, which backend runs which part of a model, and race the choice.

        >>> import tessel
        >>> found = tessel.partition("mlp:tiny", backends=["tvm"], threads=1)  # doctest: +SKIP
        >>> found.end_to_end["mix"].latency_us  # doctest: +SKIP
        4.1

    Args:
        model: a torch module, an exported program, the path of a file `.onnx` or `.pt2`, or a name of the
            zoo or `module:function` as the command takes it.
        example_inputs: of a torch module: a tensor, a sequence of inputs by position, or a mapping by name.
        on_progress: told in words what is going on.
        options: those of `tessel partition`, with its names and defaults, as `backends=["tvm", "blas"]`,
            `threads=1`, `price="model"`, `shape={"x": (1, 3, 224, 224)}`, `records="sqlite:///out/x.db"`.

    Returns:
        The distinct parts with their backends and figures, the race against every single backend, and the
        largest error against the model's own program.

    Raises:
        TypeError: there is no such option, or example inputs are missing.
        ValueError: an option's value is out of range.
        TunerError: the model cannot be imported, or nobody can run a part of it; names it.
    """
    report = words_report(on_progress)
    settings = PartitionOptions(**options)
    with unchanged_module(model):
        return find_mix(load_source(model, example_inputs, settings, report), settings, report)


def find_mix(model: Model, options: PartitionOptions, report: Report) -> PartitionedModel:
    """Return the best mix for a model that was loaded."""
    if is_predicted_for_gpu(options):
        return _predicted(model, options, report)
    with open_search(options, report) as session:
        return partition_model(
            model, session, graph_level_search=options.graph_level_search, coarser=options.coalesce
        )


def load_source(
    source: ModelSource, example_inputs: ExampleInputs, options: PartitionOptions, report: Report
) -> Model:
    """Return the model of a module, a program, a file or a name; notes on it are reported.

    Raises:
        TypeError: the source is nothing of these, or example inputs are missing or not wanted.
    """
    name = str(source) if isinstance(source, str | Path) else type(source).__name__
    report.on_progress(TuningProgress(text=f"loading {name}"))
    if isinstance(source, str | Path):
        if example_inputs is not None:
            raise TypeError(f"{name} has inputs of its own; leave example_inputs out, or give their shapes")
        loaded = load_model(
            name, shapes=options.shape, values=options.value, batch=options.batch, training=options.train
        )
    else:
        loaded = _load_torch(source, example_inputs, options)
        loaded = for_training(loaded) if options.train else loaded
    for note in loaded.notes:
        report.on_note(note)
    return loaded


def _load_torch(source: ModelSource, example_inputs: ExampleInputs, options: PartitionOptions) -> Model:
    try:
        import torch  # noqa: PLC0415 - an optional extra

        from tuner.frontend.torch import program  # noqa: PLC0415 - needs torch
    except ModuleNotFoundError as error:
        raise TunerError("a torch module needs torch; install the extra `torch`") from error
    name = type(source).__name__
    if isinstance(source, torch.export.ExportedProgram):
        return program.import_export(source, "exported program", shapes=options.shape or {})
    if not isinstance(source, torch.nn.Module):
        raise TypeError(
            f"model is a {name}; give a torch module, an exported program, the path of a file, or a name"
        )
    if example_inputs is None:
        raise TypeError(f"{name} is a torch module, which is traced on inputs; give example_inputs")
    inputs = program.by_position(source, example_inputs, name)
    completed = program.with_defaults(source, inputs)
    try:
        return program.import_module(source, completed, name, shapes=options.shape)
    except UnsupportedOperatorError:
        if len(completed) == len(inputs):
            raise
    # Some take defaults by name alone: transformers gives its own `use_cache` beside one by position.
    return program.import_module(source, inputs, name, shapes=options.shape)


@contextmanager
def unchanged_module(source: ModelSource) -> Iterator[None]:
    """Take back, in the end, the hook by which a torch module gives plain results meanwhile."""
    hooks = getattr(source, "_forward_hooks", {})
    before = set(hooks)
    try:
        yield
    finally:
        for added in set(hooks) - before:
            del hooks[added]


def words_report(on_progress: Callable[[str], None] | None) -> Report:
    """Return a report that tells progress and notes in words."""
    if on_progress is None:
        return Report()
    return Report(on_progress=lambda progress: on_progress(progress.text), on_note=on_progress)


def _predicted(model: Model, options: PartitionOptions, report: Report) -> PartitionedModel:
    """Partition a model for a GPU that is not here; every figure is a prediction."""
    device, target = find_gpu(options.target), resolve_target(options.target)
    kernel_model = gpu_model(options)
    report.on_progress(TuningProgress(text=f"predicting {model.name} on {device.name}"))
    result = predict_partition(
        model,
        kernel_model,
        device,
        target,
        backend_names=options.backends,
        assignments=assignments_of(options),
    )
    report.on_note(describe_prediction(device, kernel_model))
    return result


def compile(
    model: ModelSource,
    example_inputs: ExampleInputs = None,
    *,
    shape: Shapes | Sequence[Shapes] | None = None,
    pad: Mapping[str, Fill] | None = None,
    on_progress: Callable[[str], None] | None = None,
    **options: Unpack[CompileKeywords],
) -> Program:
    """Return the best mix of backends for a model as a program, which is called as the model is.

        >>> import tessel
        >>> program = tessel.compile(module, (x,), backends=["tvm", "blas"])  # doctest: +SKIP
        >>> y = program(x)  # doctest: +SKIP

    Other arguments and errors are those of `partition`. The program is for inference on this machine's CPU
    or GPU (`target="cuda"`), for the shapes of its example inputs, and holds the weights as they are now.

    Args:
        shape: other shapes by name of input; or several sets of them, in each of which the program is called,
            as in `[{"ids": (1, 16)}, {"ids": (1, 128)}]`.
        pad: what fills up inputs, by name, that are smaller than one of several shapes, as in `{"ids": 0}`.

    Raises:
        TunerError: the model writes its buffers or inputs, or is to be trained.
        ValueError: padding changes results, or there are not several shapes.
    """
    report = words_report(on_progress)
    settings = PartitionOptions(**options)
    with unchanged_module(model):
        return compile_shapes(model, example_inputs, settings, report, sets=_sets(shape), pad=pad or {})[0]


def compile_shapes(
    model: ModelSource,
    example_inputs: ExampleInputs,
    options: PartitionOptions,
    report: Report,
    *,
    sets: Sequence[Shapes],
    pad: Mapping[str, Fill],
) -> tuple[Program, tuple[CompiledModel, ...]]:
    """Return the program of a model, and what it was made of for each set of shapes.

    Raises:
        ValueError: padding changes results, or there are not several shapes.
    """
    compiled: list[CompiledModel] = []

    def compile_one(shapes: Shapes, held: HeldWeights) -> tuple[Program, list[np.ndarray]]:
        settings = replace(options, shape=shapes or None)
        try:
            loaded = load_source(model, example_inputs, settings, report)
        except UnsupportedOperatorError as error:
            return program_of_unimported(model, settings, error)
        source = _source_of(model, example_inputs) if len(sets) == 1 else None
        compiled.append(compile_model(loaded, settings, report, source=source, held=held))
        return compiled[-1].program, random_inputs(loaded, options.seed)

    return _shaped(sets, pad, compile_one), tuple(compiled)


def _sets(shape: Shapes | Sequence[Shapes] | None) -> Sequence[Shapes]:
    return [shape or {}] if shape is None or isinstance(shape, Mapping) else shape


def _shaped(
    sets: Sequence[Shapes],
    pad: Mapping[str, Fill],
    compile_one: Callable[[Shapes, HeldWeights], tuple[Program, list[np.ndarray]]],
) -> Program:
    """Return one program of what is compiled for each set of shapes, with inputs to try padding on.

    Raises:
        ValueError: padding changes results, or there are not several shapes.
    """
    if not sets:
        raise ValueError("shape is an empty list; give one set of shapes or several, or leave it out")
    if pad and len(sets) == 1:
        raise ValueError("padding needs several shapes to be padded to; give at least two, or leave it out")
    held: HeldWeights = {}
    inputs = dict(compile_one(shapes, held) for shapes in sets)
    if len(inputs) == 1:
        return next(iter(inputs))
    program = ShapedProgram(tuple(inputs), pad)
    if pad:
        check_padding(program, inputs.__getitem__)
    return program


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """A program, and the partition that it was made of."""

    program: Program
    partition: PartitionedModel


def compile_model(
    model: Model,
    options: PartitionOptions,
    report: Report,
    *,
    source: ProgramSource | None = None,
    held: HeldWeights | None = None,
) -> CompiledModel:
    """Return the program of a model that was loaded; `held` is that of `compile_mix`."""
    require_compilable(model, resolve_target(options.target, num_threads=options.threads))
    with open_search(options, report) as session:
        mix = partition_model(
            model, session, graph_level_search=options.graph_level_search, coarser=options.coalesce
        )
        report.on_progress(TuningProgress(text="compiling the mix"))
        compiled = compile_mix(
            mix.source,
            mix.function.module,
            session.backends,
            session.target,
            facts=ProgramFacts.of(mix),
            seed=session.seed,
            held=held,
        )
        program = program_of(compiled, mix.source, source)
        wholes = list(whole_programs(model, session, program))
        program = fastest(wholes, model, session.seed, report, mix=program)
    return CompiledModel(program, mix)


class _TimeUpError(Exception):
    """Say that a search was given no more time."""


def check_options(**options: Unpack[PartitionKeywords]) -> None:
    """Refuse options that there are not.

    Raises:
        TypeError: there is no such option.
    """
    PartitionOptions(**options)


def compile_within(
    module: ModelSource,
    example_inputs: ExampleInputs,
    *,
    seconds: float,
    shape: Shapes | Sequence[Shapes] | None = None,
    pad: Mapping[str, Fill] | None = None,
    **options: Unpack[CompileKeywords],
) -> Program:
    """Return a program for which no more is measured than so many seconds allow; see `compile`.

    Without time nothing is measured: rules and what the records know choose. What is measured until time is
    up is in the records, and the choice is made by them then.
    """
    ends = time.monotonic() + seconds

    def check_time(_: TuningProgress) -> None:
        if time.monotonic() > ends:
            raise _TimeUpError

    def compile_one(shapes: Shapes, held: HeldWeights) -> tuple[Program, list[np.ndarray]]:
        settings = PartitionOptions(**options, shape=shapes or None)
        try:
            model = load_source(module, example_inputs, settings, Report())
        except UnsupportedOperatorError as error:
            return program_of_unimported(module, settings, error)
        inputs = random_inputs(model, settings.seed)
        require_compilable(model, resolve_target(settings.target, num_threads=settings.threads))
        if seconds > 0:
            try:
                return compile_model(
                    model, settings, Report(on_progress=check_time), held=held
                ).program, inputs
            except _TimeUpError:
                logger.info("time is up: rules choose with what was measured")
        return _compile_by_rules(model, settings, held, races=seconds > 0), inputs

    with unchanged_module(module):
        return _shaped(_sets(shape), pad or {}, compile_one)


def _compile_by_rules(model: Model, options: PartitionOptions, held: HeldWeights, *, races: bool) -> Program:
    """Return the program of a model of which no part is measured now.

    Where it `races`, onnxruntime alone runs against it: rules may be wrong by more than parts gain.
    """
    with ExitStack() as stack:
        if (
            options.records == DEFAULT_RECORDS
            and not Path(DEFAULT_RECORDS.removeprefix("sqlite:///")).exists()
        ):
            # Nothing is known, and nothing will be: no file is left behind.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tessel-rules-"))
            options = replace(options, records=str(Path(folder) / "records.db"))
        session = stack.enter_context(open_search(replace(options, price="rules"), Report()))
        priced = price_function(
            session,
            prepared_module(model),
            name="model",
            launch_penalty_us=_LAUNCH_PENALTY_US,
            layers=model.layers_by_variable(),
        )

        def compile_parts(function: PartitionedFunction) -> Program:
            compiled = compile_mix(
                model,
                function.module,
                session.backends,
                session.target,
                facts=ProgramFacts(parts=partition_plans([function])),
                seed=options.seed,
                held=held,
            )
            return program_of(compiled, model)

        mix = compile_parts(chosen := choose_partition(priced))
        wholes = list(whole_programs(model, session, mix)) if races else []
        if races and not wholes and "onnxruntime" in {backend.name for backend in session.backends}:
            alone = choose_partition(priced, only="onnxruntime")
            wholes += [compile_parts(alone)] if alone.fingerprint != chosen.fingerprint else []
        return fastest(wholes, model, options.seed, Report(), mix=mix)


def _source_of(model: ModelSource, example_inputs: ExampleInputs) -> ProgramSource:
    """Return what a program is raced against."""
    if isinstance(model, str | Path):
        return ProgramSource(onnx=str(model) if str(model).endswith(".onnx") else None)
    if example_inputs is None:
        return ProgramSource()
    if isinstance(example_inputs, Mapping):
        return ProgramSource(module=model, kwargs=example_inputs)
    is_sequence = isinstance(example_inputs, tuple | list)
    return ProgramSource(module=model, args=tuple(example_inputs) if is_sequence else (example_inputs,))

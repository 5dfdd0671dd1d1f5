"""Run stages one after another, as a pipeline would, and compare with the uncut model.

A model that was imported is compared with the program that it comes from, under its own framework: its
outputs or its loss, and every gradient. For models that were written here the uncut model is that of a single
stage, so a mistake in an operator's gradient would be in both: operators are checked apart, against finite
differences. What is checked either way is the cutting: liveness, relays, what is saved, the split of the
backward, and the sums over tied weights. Checked itself, by breaking stages, in
tests/tuner/stages/test_check.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import psutil
from tvm import relax

from tuner.errors import TunerError
from tuner.frontend.model import Model, Reference, Run
from tuner.frontend.values import draw_mask
from tuner.numerical_error import Deviation, compare_gradients, compare_outputs, tolerance_of, worst
from tuner.stages.build import build_stages
from tuner.stages.interface import Stage, StageFunction, gradient_name, is_gradient
from tuner.stages.program import read_program, tensor_info
from tuner.stages.task_pool import TaskPool

_WEIGHT_SCALE = 0.05
"""Standard deviation of random weights: small enough that activations of a deep model stay finite."""

_KEPT_SHARE = 0.125
"""Share of the machine's memory that a model's tensors and results may take until its next check."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """A model that ran as a whole, the tensors that it was given, and what it made of them."""

    model: Model
    seed: int
    tensors: Mapping[str, np.ndarray]
    results: Mapping[str, np.ndarray]


@dataclass(slots=True)
class WholeResults:
    """Keeps what the last model gave as a whole: it is cut in several ways, each checked against the same.

    Attributes:
        most_bytes: of what is kept, weights that the model holds included; larger ones are made anew.
    """

    most_bytes: int = field(default_factory=lambda: int(_KEPT_SHARE * psutil.virtual_memory().total))
    _kept: _Whole | None = field(init=False, default=None)

    def find(self, model: Model, seed: int) -> _Whole | None:
        """Return what is known of this very model under a seed."""
        kept = self._kept
        return kept if kept is not None and kept.model is model and kept.seed == seed else None

    def keep(self, whole: _Whole) -> None:
        """Keep one in place of the last, unless it is too large."""
        arrays = {id(each): each for each in (*whole.tensors.values(), *whole.results.values())}
        fits = sum(each.nbytes for each in arrays.values()) <= self.most_bytes
        self._kept = whole if fits else None


def check_gradients(
    model: Model,
    stages: Sequence[Stage],
    *,
    seed: int,
    run: Run,
    jobs: int = 1,
    interrupt: Callable[[], None] = lambda: None,
    known: WholeResults | None = None,
) -> Deviation:
    """Find what the chained stages have most wrong, against the model's own program or else the uncut model.

    Outputs are compared, and for training every weight's gradient, once by the joint backward and once by
    the two halves (`tuner.numerical_error` says how). Where a gradient differs, the model's own program is
    asked for its gradients in double precision, beside which its rounding errors show. The tensor is named
    with the stages that make it.

    Args:
        model: what was cut; its reference is what it is compared with, where it has one.
        stages: what it was cut into.
        seed: draws the inputs, and the weights that the model does not hold.
        run: executes a module; threads call it where there are several jobs.
        jobs: modules that may run at once: the uncut model's beside a stage's, both ways to run the backward.
        interrupt: see `TaskPool`.
        known: keeps what the model gave as a whole, for the next way to cut it.

    Raises:
        TunerError: a stage reads what no stage before it makes.
    """
    with TaskPool(run, jobs=jobs, interrupt=interrupt) as lanes:
        tensors, expect = _start_whole(model, seed, lanes, known)
        # One forward serves both backwards, as in a pipeline that may choose either.
        forward = lanes.start(functools.partial(_run_forwards, stages, tensors, lanes.run))()
        ways = [
            lanes.start(functools.partial(_run_backwards, stages, forward, split=split, run=lanes.run))
            for split in ((False, True) if model.training else (False,))
        ]
        expected, found = expect(), [each() for each in ways]
    if known is not None:
        known.keep(_Whole(model, seed, tensors, expected))
    tolerance = tolerance_of(_computed_types(model))
    deviation = _furthest(found, expected, stages, tolerance)
    if model.training and model.reference is not None and not deviation.is_within(tolerance):
        # Rounding errors show beside the truth: of sums that cancel, and of values beside a ReLU's 0.
        given = {spec.name: tensors[spec.name] for spec in model.inputs}
        exact = model.reference.exact_gradients(model, given)
        if exact is not None:
            by_name = {gradient_name(name): gradient for name, gradient in exact.items()}
            return _furthest(found, expected, stages, tolerance, by_name)
    return deviation


def _start_whole(
    model: Model, seed: int, lanes: TaskPool, known: WholeResults | None
) -> tuple[Mapping[str, np.ndarray], Callable[[], Mapping[str, np.ndarray]]]:
    """Return tensors for a model, and what waits for its results as a whole; it runs meanwhile if need be."""
    kept = None if known is None else known.find(model, seed)
    if kept is not None:
        return kept.tensors, lambda: kept.results
    tensors = draw_tensors(model, rng=np.random.default_rng(seed))
    if model.reference is not None:
        tensors, expected = _from_reference(model, model.reference, tensors, seed)
        return tensors, lambda: expected
    whole = functools.partial(run_stages, build_stages(model, ()), tensors, split=False, run=lanes.run)
    return tensors, lanes.start(whole)


def _furthest(
    found: Sequence[Mapping[str, np.ndarray]],
    expected: Mapping[str, np.ndarray],
    stages: Sequence[Stage],
    tolerance: float,
    exact: Mapping[str, np.ndarray] | None = None,
) -> Deviation:
    """Return the deviation that is worst of what each way to run the backward gave."""
    halves = ("the joint backward", "the split backward")
    deviations = [
        msgspec.structs.replace(each, tensor=_described(each.tensor, stages, halves[index]))
        for index, results in enumerate(found)
        for each in _compare(results, expected, tolerance, exact)
    ]
    return worst(deviations) or Deviation(tensor="nothing", relative_error=0.0)


def _computed_types(model: Model) -> frozenset[str]:
    """Return the data types of weights and of all that is computed: autocast multiplies in a narrower one."""
    program = read_program(model)
    types = [variable.ty for variable in (*program.parameters, *(each.var for each in program.bindings))]
    fields = [
        field for kind in types for field in (kind.fields if isinstance(kind, relax.TupleType) else [kind])
    ]
    return frozenset(str(field.dtype) for field in fields if isinstance(field, relax.TensorType))


def _from_reference(
    model: Model, reference: Reference, tensors: Mapping[str, np.ndarray], seed: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the tensors with inputs that the model's own program takes, and what it makes of them."""
    inputs, outputs = reference.draw(model.inputs, seed)
    program = read_program(model)
    names = [program.names[output] for output in program.outputs]
    tensors = {**tensors, **inputs}
    if not model.training:
        found = zip(names, outputs, strict=True)
        return tensors, {name: output for name, output in found if name not in tensors}  # what stages make
    loss, gradients = reference.gradients(model, inputs)
    by_name = {gradient_name(name): gradient for name, gradient in gradients.items()}
    return tensors, {names[0]: loss} | by_name


def draw_tensors(model: Model, *, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw inputs and weights by name; weights that the model holds are taken, and tied ones are one."""
    program = read_program(model)
    tensors: dict[str, np.ndarray] = {}
    for spec in model.inputs:
        if spec.dropout is not None:
            tensors[spec.name] = draw_mask(spec, rng)
        elif "float" in spec.dtype:
            tensors[spec.name] = rng.standard_normal(spec.shape).astype(spec.dtype)
        else:
            tensors[spec.name] = rng.integers(0, spec.high, spec.shape).astype(spec.dtype)
    for variable, name in zip(program.parameters, model.parameter_names, strict=True):
        if name in model.parameters:
            tensors[name] = np.asarray(model.parameters[name])
        else:
            info = tensor_info(variable, name)
            weight = np.asarray(rng.standard_normal(info.shape, dtype=np.float32))
            weight *= _WEIGHT_SCALE
            tensors[name] = weight.astype(info.dtype, copy=False)
    for first, *others in model.tied:
        tensors.update(dict.fromkeys(others, tensors[first]))
    return tensors


def run_stages(
    stages: Sequence[Stage], tensors: Mapping[str, np.ndarray], *, split: bool, run: Run
) -> dict[str, np.ndarray]:
    """Run stages in order, then their backwards in reverse, each tensor found by its name.

    Args:
        tensors: the user's inputs and the weights.
        split: whether to run the two halves of the backward, all input halves first.

    Returns:
        The model's outputs, and for training each weight's gradient, summed over the stages that read it.
    """
    return _run_backwards(stages, _run_forwards(stages, tensors, run), split=split, run=run)


def _run_forwards(
    stages: Sequence[Stage], tensors: Mapping[str, np.ndarray], run: Run
) -> dict[str, np.ndarray]:
    """Return the tensors that are given and those that the stages make of them, by name."""
    known = dict(tensors)
    for stage in stages:
        known.update(_run_function(stage.forward, known, run))
    return known


def _run_backwards(
    stages: Sequence[Stage], forward: Mapping[str, np.ndarray], *, split: bool, run: Run
) -> dict[str, np.ndarray]:
    """Return the outputs and weight gradients, of what the forwards made; see `run_stages`."""
    known = dict(forward)
    results = {name: known[name] for stage in stages for name in stage.model_outputs}
    gradients: dict[str, np.ndarray] = {}
    for stage in reversed(stages):
        function = stage.backward_input if split else stage.backward
        made = _run_function(function, known, run) if function else {}
        _add_gradients(gradients, made, stage)
        _receive_gradients(known, made, stage)
    for stage in reversed(stages) if split else ():
        if stage.backward_weight is not None:
            _add_gradients(gradients, _run_function(stage.backward_weight, known, run), stage)
    return results | gradients


def _run_function(
    function: StageFunction, known: Mapping[str, np.ndarray], run: Run
) -> dict[str, np.ndarray]:
    missing = [info.name for info in function.inputs if info.name not in known]
    if missing:
        raise TunerError(f"a stage reads {missing}, which no stage before it makes; cut the model again")
    outputs = run(function.module, [known[info.name] for info in function.inputs])
    return {info.name: np.asarray(output) for info, output in zip(function.outputs, outputs, strict=True)}


def _add_gradients(gradients: dict[str, np.ndarray], made: Mapping[str, np.ndarray], stage: Stage) -> None:
    for name in map(gradient_name, stage.parameters):
        if name in made:
            gradients[name] = gradients[name] + made[name] if name in gradients else made[name]


def _receive_gradients(known: dict[str, np.ndarray], made: Mapping[str, np.ndarray], stage: Stage) -> None:
    """Hand gradients to stages before; those of a tensor that later stages read, too, add to theirs."""
    received = {gradient_name(info.name) for info in stage.received}
    for name, value in made.items():
        known[name] = known[name] + value if name in received and name in known else value


def _compare(
    found: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    tolerance: float,
    exact: Mapping[str, np.ndarray] | None,
) -> tuple[Deviation, ...]:
    def outputs(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: tensor for name, tensor in tensors.items() if not is_gradient(name)}

    def gradients(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: tensor for name, tensor in tensors.items() if is_gradient(name)}

    # A gradient of nothing but zeros need not be made.
    needed = {name: value for name, value in gradients(expected).items() if name in found or value.any()}
    return (
        *compare_outputs(outputs(found), outputs(expected)),
        *compare_gradients(gradients(found), needed, exact=exact, tolerance=tolerance),
    )


def _described(name: str, stages: Sequence[Stage], half: str) -> str:
    """Name an output or a gradient with the stages that make it."""
    if not is_gradient(name):
        return f"output {name}"
    makers = [stage.name for stage in stages if name in map(gradient_name, stage.parameters)]
    weight = next(
        (each for stage in stages for each in stage.parameters if gradient_name(each) == name), name
    )
    return f"the gradient of {weight} ({' + '.join(makers) or 'no stage'}, {half})"

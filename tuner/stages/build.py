"""Cut a model into stages, and write each stage's forward and its three backward functions.

`build_stages` reads as its steps: find what flows between the parts, take each part's gradients as one
program, and write the slices of it. A backward function holds what its results need and nothing else:

    joint backward   input gradients and weight gradients
    input half (B)   input gradients, and each value of theirs that the weight half reads
    weight half (W)  weight gradients, less what the input half has computed

The user's inputs are data and need no gradient, so a first stage has no input half. Checked in
tests/tuner/stages/test_build.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tvm import relax

from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.graph.relax_types import with_num_inputs
from tuner.plan import TensorInfo
from tuner.stages.cut_points import names_within, split_spans
from tuner.stages.differentiate import Adjoint, differentiate
from tuner.stages.interface import Stage, StageFunction, gradient_name, total_bytes
from tuner.stages.layers import find_spans
from tuner.stages.liveness import Part, StagesBefore, find_flow, input_free
from tuner.stages.program import (
    Binding,
    Expr,
    Program,
    Var,
    blocks_gradients,
    is_differentiable,
    needed,
    operator_name,
    read_program,
    tensor_info,
    write_module,
)

_VIEWS = frozenset({"reshape", "expand_dims", "squeeze", "flatten", "nn.batch_flatten", "grad.no_grad"})
"""Operators that give the same bytes, mostly in another shape."""


def build_stages(
    model: Model, cuts: Sequence[int], before: StagesBefore | None = None, *, constant_weights: bool = False
) -> tuple[Stage, ...]:
    """Cut a model before the bindings at the positions `cuts`, and differentiate each part where it trains.

    Args:
        model: as a front end hands it over.
        cuts: rising positions in `main`'s bindings, from `cut_after` or `cut_between`; none gives one stage.
        before: of each stage, those that it may receive from, where stages are no chain.
        constant_weights: whether forwards say which of their inputs are weights, so that what depends on
            weights alone is computed once (`tuner.lowering.weight_binding`); not for stages that train.

    Raises:
        TunerError: the positions are not rising, a stage would compute nothing, or one reads what it has no
            way to.
        UnsupportedOperatorError: an operator has no gradient.
    """
    program = read_program(model)
    borders = (0, *cuts, len(program.bindings))
    if any(first >= last for first, last in itertools.pairwise(borders)):
        raise TunerError(
            f"cuts {tuple(cuts)} are not rising positions within 1 to {len(program.bindings) - 1}; "
            "take them from cut_after or cut_between"
        )
    if model.training:
        _check_loss(program)
    spans = find_spans(model, program)
    if before is not None:
        # Branches may begin and meet inside a layer.
        spans = split_spans(model.module_paths, spans, cuts)
    recomputable = _recomputable(program)
    stages: list[Stage] = []
    returned: dict[int, set[str]] = {}
    # From the last: which gradients a stage makes depends on which come back to it.
    for index, part in reversed(list(enumerate(find_flow(program, cuts, before).parts))):
        if not part.bindings:
            raise TunerError(
                f"stage{index} of cuts {tuple(cuts)} computes nothing from the model's inputs; move or "
                "drop a cut"
            )
        layers = names_within(model.module_paths, spans, borders[index], borders[index + 1])
        came_back = frozenset(returned.get(index, ()))
        seeds = _seeds(program, part, came_back) if model.training else {}
        stages.append(_build_stage(program, part, f"stage{index}", layers, seeds, recomputable))
        for name, source in returned_gradients(stages[-1], came_back).items():
            returned.setdefault(source, set()).add(name)
    found = reversed(stages)
    return tuple(map(_with_constant_weights, found) if constant_weights else found)


def _with_constant_weights(stage: Stage) -> Stage:
    """Return a stage whose forward says that its weights keep their values."""
    forward = stage.forward
    num_inputs = len(forward.inputs) - len(stage.parameters)
    return replace(stage, forward=replace(forward, module=with_num_inputs(forward.module, num_inputs)))


def returned_gradients(stage: Stage, came_back: Collection[str]) -> dict[str, int]:
    """Name the received tensors whose gradients a stage gives back, and the stage that each goes to.

    Args:
        stage: makes some of them.
        came_back: tensors whose gradients later stages give back to it; those of relayed ones go on.
    """
    made = {info.name for info in stage.backward.outputs} if stage.backward is not None else set()
    return {
        info.name: source
        for info, source in zip(stage.received, stage.sources, strict=True)
        if gradient_name(info.name) in made or (info.name in stage.relayed and info.name in came_back)
    }


def _check_loss(program: Program) -> None:
    infos = [tensor_info(output, program.names[output]) for output in program.outputs]
    if len(infos) != 1 or infos[0].shape or "float" not in infos[0].dtype:
        shapes = [(info.dtype, info.shape) for info in infos]
        raise TunerError(
            f"the model returns {shapes}, and training needs one floating-point scalar, the loss; "
            "return the loss alone, or tune the model for inference"
        )


def _recomputable(program: Program) -> frozenset[Var]:
    """Find the values that a backward computes again rather than keeps.

    These are the ones that cost no bytes to find again: other views of a tensor, and what depends on weights
    and constants alone, such as a mask or a transposed weight.
    """
    views = (binding.var for binding in program.bindings if operator_name(binding.value) in _VIEWS)
    return input_free(program).union(views)


def _build_stage(
    program: Program,
    part: Part[Binding],
    name: str,
    layers: tuple[str, ...],
    seeds: Mapping[Var, Expr],
    recomputable: frozenset[Var],
) -> Stage:
    blocked = {binding.var for binding in program.bindings if blocks_gradients(binding.value)}
    input_targets = tuple(
        value for value in part.received_and_read if is_differentiable(value) and value not in blocked
    )
    weight_targets = tuple(
        value
        for value in part.parameters
        if is_differentiable(value) and program.names[value] not in program.untrained
    )
    adjoint = differentiate(
        part.bindings,
        seeds=seeds,
        wanted=(*input_targets, *weight_targets),
        padding_rows=program.padding_rows,
    )
    writer = _Writer(program, part, name, adjoint, seeds, recomputable)
    slices = writer.slices(input_targets, weight_targets)
    received = writer.describe(part.received)
    sent = writer.describe(part.sent)
    return Stage(
        name=name,
        layers=layers,
        forward=writer.forward(slices.saved),
        backward=writer.function(slices.joint, slices.input_gradients + slices.weight_gradients),
        backward_input=writer.function(slices.first, slices.input_gradients + slices.handed_on),
        backward_weight=writer.function(slices.second, slices.weight_gradients),
        inputs=writer.describe((*part.received_and_read, *part.inputs)),
        outputs=writer.describe(part.made),
        model_outputs=tuple(program.names[value] for value in part.made if value in program.outputs),
        received=received,
        sources=part.sources,
        sent=sent,
        relayed=tuple(program.names[value] for value in part.received if value in set(part.sent)),
        parameters=tuple(program.names[value] for value in part.parameters),
        saved=writer.describe(slices.saved),
        saved_for_weight=writer.describe(slices.saved_for_weight),
        weight_bytes=total_bytes(writer.describe(part.parameters)),
    )


def _seeds(program: Program, part: Part[Binding], returned: frozenset[str]) -> dict[Var, Expr]:
    """Give the gradient that arrives for each output: a new input, or the constant one for the loss."""
    seeds: dict[Var, Expr] = {}
    for value in part.made:
        if value in program.outputs:
            seeds[value] = relax.const(1.0, value.ty.dtype)
        elif program.names[value] in returned:
            seeds[value] = relax.Var(gradient_name(program.names[value]), value.ty)
    return seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slices:
    """Which bindings and values each backward function holds; the results are values and their names."""

    joint: tuple[Binding, ...]
    first: tuple[Binding, ...]
    second: tuple[Binding, ...]
    input_gradients: tuple[tuple[str, Expr], ...]
    weight_gradients: tuple[tuple[str, Expr], ...]
    handed_on: tuple[tuple[str, Expr], ...]
    saved: tuple[Var, ...]
    saved_for_weight: tuple[Var, ...]


class _Writer:
    """Writes the functions of one stage: it knows the values' names and the order in which they stand."""

    def __init__(
        self,
        program: Program,
        part: Part[Binding],
        name: str,
        adjoint: Adjoint,
        seeds: Mapping[Var, Expr],
        recomputable: frozenset[Var],
    ) -> None:
        self._program = program
        self._part = part
        self._adjoint = adjoint
        self._recomputed = tuple(binding for binding in part.bindings if binding.var in recomputable)
        arriving = [seed for seed in seeds.values() if isinstance(seed, relax.Var)]
        self._names: dict[Var, str] = dict(program.names)
        self._names.update((seed, seed.name) for seed in arriving)
        self._names.update(
            (binding.var, f"{name}.{index}.{binding.var.name}")
            for index, binding in enumerate(adjoint.bindings)
        )
        self._arriving = frozenset(arriving)
        # What a function may be given, in the order in which it takes it.
        self._givable: tuple[Var, ...] = (
            *part.received_and_read,
            *part.inputs,
            *(binding.var for binding in part.bindings),
            *(binding.var for binding in adjoint.bindings),
            *arriving,
            *part.parameters,
        )

    def describe(self, values: Iterable[Var]) -> tuple[TensorInfo, ...]:
        """Describe tensors under their names."""
        return tuple(tensor_info(value, self._names[value]) for value in values)

    def slices(self, input_targets: Sequence[Var], weight_targets: Sequence[Var]) -> _Slices:
        """Divide the adjoint program among the backward functions."""
        gradients = self._adjoint.gradients
        bindings = (*self._recomputed, *self._adjoint.bindings)
        input_gradients = self._results(input_targets, gradients)
        weight_gradients = self._results(weight_targets, gradients)
        joint = needed(bindings, [value for _, value in input_gradients + weight_gradients])
        first = needed(bindings, [value for _, value in input_gradients])
        again = {binding.var for binding in self._recomputed}
        # A tuple cannot be handed on, but its fields can.
        fields = self._fields_of(first)
        taken = needed(
            bindings,
            [value for _, value in weight_gradients],
            given=frozenset(binding.var for binding in (*first, *fields) if binding.var not in again),
        )
        read = {variable for binding in taken for variable in binding.reads}
        read.update(value for _, value in weight_gradients)
        wanted = [binding.var for binding in fields if binding.var in read]
        first = needed(bindings, [*(value for _, value in input_gradients), *wanted])
        computed_first = frozenset(binding.var for binding in first if binding.var not in again)
        second = needed(bindings, [value for _, value in weight_gradients], given=computed_first)
        read_second = self._read_by(second, weight_gradients)
        read_joint = self._read_by(joint, input_gradients + weight_gradients)
        weights = set(self._part.parameters)
        handed_on = tuple((self._names[value], value) for value in read_second if value in computed_first)
        return _Slices(
            joint=joint,
            first=first,
            second=second,
            input_gradients=input_gradients,
            weight_gradients=weight_gradients,
            handed_on=handed_on,
            saved=tuple(value for value in read_joint if value not in weights | self._arriving),
            saved_for_weight=tuple(value for value in read_second if value not in weights),
        )

    def _fields_of(self, first: Sequence[Binding]) -> tuple[Binding, ...]:
        """Find the fields, taken anywhere in the adjoint program, of the tuples that some bindings make."""
        made = {binding.var for binding in first}
        found: list[Binding] = []
        for binding in self._adjoint.bindings:
            if binding.field_of in made and binding.var not in made:
                made.add(binding.var)
                found.append(binding)
        return tuple(found)

    def forward(self, saved: Sequence[Var]) -> StageFunction:
        """Write the forward: its outputs, then what it saves beyond them and its inputs."""
        given = (*self._part.received_and_read, *self._part.inputs, *self._part.parameters)
        extra = [value for value in saved if value not in {*given, *self._part.made}]
        return self._write(
            self._part.bindings, given, [(self._names[v], v) for v in (*self._part.made, *extra)]
        )

    def function(
        self, bindings: Sequence[Binding], results: Sequence[tuple[str, Expr]]
    ) -> StageFunction | None:
        """Write a function, or none where it has no results."""
        return self._write(bindings, self._read_by(bindings, results), results) if results else None

    def _results(self, targets: Sequence[Var], gradients: Mapping[Var, Expr]) -> tuple[tuple[str, Expr], ...]:
        present = (target for target in targets if target in gradients)
        return tuple((gradient_name(self._names[target]), gradients[target]) for target in present)

    def _read_by(self, bindings: Sequence[Binding], results: Sequence[tuple[str, Expr]]) -> tuple[Var, ...]:
        """List what bindings and results read but do not compute, in the order of `_givable`."""
        read = {variable for binding in bindings for variable in binding.reads}
        read.update(value for _, value in results)
        read.difference_update(binding.var for binding in bindings)
        return tuple(value for value in self._givable if value in read)

    def _write(
        self, bindings: Sequence[Binding], given: Sequence[Var], results: Sequence[tuple[str, Expr]]
    ) -> StageFunction:
        module = write_module(
            bindings,
            inputs=given,
            outputs=[value for _, value in results],
            names=self._names,
            functions=self._program.functions,
        )
        outputs = tuple(tensor_info(value, name) for name, value in results)
        return StageFunction(module, self.describe(given), outputs)

"""Cut a torch module into stages at the same names: one module per stage, whose chain equals the original.

Names of cuts, liveness, relays and ties are those of Relax models. Each stage is an `fx.GraphModule` over
the original's own parameters, under their own names, so an optimiser, a checkpoint and a tied weight see what
they always saw.

What the model leaves out: shapes and control flow are those of the example inputs, as in every export. A
change of a buffer (running statistics) happens once per forward, in the stage that computes it, so that
micro-batches change it one after another. Checked against the uncut module in
tests/tuner/stages/torch_modules/test_torch_stages.py.

Source: Slapo (Chen et al., ASPLOS 2024, section 3.3.2) for cuts by name and relays; taking several outputs,
tuples and dicts as well is what differs.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tuner.errors import TunerError
from tuner.frontend.pipeline_marks import marked_cuts
from tuner.plan import Borders, TensorInfo, TiedParameter
from tuner.stages.cut_points import layer_spans, names_within, positions_after
from tuner.stages.liveness import Part, find_flow
from tuner.stages.torch_graph import TorchProgram, TorchStep, read_module

_STOPS = frozenset({torch.ops.aten.detach.default, torch.ops.aten.detach_.default})
"""Operators that no gradient passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchStage:
    """One stage of a torch module.

    Attributes:
        name: `stage0`, `stage1`, …
        layers: names of the layers it holds, in order.
        module: takes `inputs` in order and returns the tuple of `outputs`; its weights are the original's.
        inputs: tensors that it reads: from earlier stages, then from the user.
        outputs: tensors that it makes for later stages or the user.
        received: what crosses the border from the stage before, in order, relayed tensors included.
        sent: what crosses the border to the stage after, in order, relayed tensors included.
        relayed: names of the tensors that it receives and sends on.
        parameters: names of its weights in the original module, in order of first use.
        differentiable: names of those of its tensors that gradients may come back for: numbers with a point
            that depend on a weight.
    """

    name: str
    layers: tuple[str, ...]
    module: fx.GraphModule
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    received: tuple[TensorInfo, ...]
    sent: tuple[TensorInfo, ...]
    relayed: tuple[str, ...]
    parameters: tuple[str, ...]
    differentiable: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchPipeline:
    """A torch module in stages.

    Attributes:
        stages: in order.
        tied: weights that several stages read, by the names that the original's modules give them there;
            their gradients are summed over the stages. `tuner.stages.tied_ranks` says on which ranks.
        input_names: the user's inputs, in order.
        output_names: the tensors that the original returns, flattened, in order, inputs among them.
        output_constants: place among all that it returns, and value, of what is no tensor, such as None.
        output_spec: how torch's pytree puts it together again.
    """

    stages: tuple[TorchStage, ...]
    tied: tuple[tuple[TiedParameter, ...], ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    output_constants: tuple[tuple[int, Any], ...]
    output_spec: Any

    def run(self, *inputs: torch.Tensor) -> Any:
        """Run the stages one after another in this process; return what the original module would."""
        known = dict(zip(self.input_names, pytree.tree_leaves(inputs), strict=True))
        for stage in self.stages:
            made = stage.module(*(known[info.name] for info in stage.inputs))
            known.update(zip((info.name for info in stage.outputs), made, strict=True))
        return self.assemble(known)

    def assemble(self, known: Mapping[str, torch.Tensor]) -> Any:
        """Put outputs, found by name, into the tuples and dicts that the original module returns."""
        leaves: list[Any] = [known[name] for name in self.output_names]
        for place, value in self.output_constants:
            leaves.insert(place, value)
        return pytree.tree_unflatten(leaves, self.output_spec)


def split_module(
    module: torch.nn.Module, inputs: Sequence[Any], cuts: Sequence[str] | None = None
) -> TorchPipeline:
    """Cut a torch module after the sub-modules named, or after those that were marked.

    The module is exported in the mode that it is in, so dropout and batch normalisation train where it does.

    Each stage's module says in `meta["borders"]` what a pipeline has to hand it (`Borders`), for
    `tessel.engine.build_schedule`.

    Args:
        module: must stay alive and keep its weights, which the stages share.
        inputs: example inputs of one micro-batch; shapes are fixed to theirs.
        cuts: names as `tuner.stages.cut_after` takes them; None takes the marked ones.

    Raises:
        UnknownNameError: a cut names no module.
        TunerError: the module cannot be exported, a cut leaves a stage empty, or something that is no tensor
            would cross it.
    """
    program = read_module(module, tuple(inputs))
    paths = [step.path for step in program.bindings]
    spans = layer_spans(paths)
    positions = positions_after(paths, spans, marked_cuts(module) if cuts is None else cuts)
    borders = (0, *positions, len(paths))
    differentiable = _differentiable(program)
    stages = []
    for index, part in enumerate(find_flow(program, positions).parts):
        if positions and not part.bindings:
            raise TunerError(f"stage{index} computes nothing from the module's inputs; move or drop a cut")
        layers = names_within(paths, spans, borders[index], borders[index + 1])
        stages.append(_build_stage(program, part, f"stage{index}", layers, differentiable))
    pipeline = TorchPipeline(
        stages=tuple(stages),
        tied=_tied(stages),
        input_names=tuple(node.name for node in program.inputs),
        output_names=tuple(node.name for node in program.results),
        output_constants=program.constants,
        output_spec=program.output_spec,
    )
    for stage, borders_of_stage in zip(stages, _borders(pipeline), strict=True):
        stage.module.meta["borders"] = borders_of_stage
    return pipeline


def _borders(pipeline: TorchPipeline) -> list[Borders]:
    """Return what crosses the borders of each stage when the user's inputs are given to the first alone."""
    stages = pipeline.stages
    crossing: list[tuple[str, ...]] = [pipeline.input_names]
    for number, stage in enumerate(stages[:-1], start=1):
        later = {info.name for each in stages[number:] for info in each.inputs}
        # What the user gave or gets may have to pass stages that have nothing to do with it.
        passing = [name for name in crossing[-1] if name in later or name in pipeline.output_names]
        results = [info.name for info in stage.outputs if info.name in pipeline.output_names]
        crossing.append(tuple(dict.fromkeys((*(info.name for info in stage.sent), *passing, *results))))
    crossing.append(pipeline.output_names)
    return [
        Borders(
            takes=crossing[number],
            reads=tuple(info.name for info in stage.inputs),
            makes=tuple(info.name for info in stage.outputs),
            gives=crossing[number + 1],
            tied=pipeline.tied,
        )
        for number, stage in enumerate(stages)
    ]


def _differentiable(program: TorchProgram) -> frozenset[fx.Node]:
    """Find the values that a gradient may reach a weight through."""
    found = {
        node
        for node, name in program.state_names.items()
        if isinstance(program.state[name], torch.nn.Parameter) and program.state[name].requires_grad
    }
    for step in program.bindings:
        value = step.var.meta.get("val")
        may_carry = not isinstance(value, torch.Tensor) or value.is_floating_point()
        if may_carry and not found.isdisjoint(step.reads) and step.var.target not in _STOPS:
            found.add(step.var)
    return frozenset(found)


def _build_stage(
    program: TorchProgram,
    part: Part[TorchStep],
    name: str,
    layers: tuple[str, ...],
    differentiable: frozenset[fx.Node],
) -> TorchStage:
    given = (*part.received_and_read, *part.inputs)
    made = tuple(value for value in part.made if value not in program.updates or value in program.results)
    return TorchStage(
        name=name,
        layers=layers,
        module=_write(program, part, given, made),
        inputs=_describe(given),
        outputs=_describe(made),
        received=_describe(part.received),
        sent=_describe(part.sent),
        relayed=tuple(value.name for value in part.received if value in set(part.sent)),
        parameters=tuple(
            program.state_names[node]
            for node in part.parameters
            if isinstance(program.state[program.state_names[node]], torch.nn.Parameter)
        ),
        differentiable=frozenset(
            node.name for node in (*part.received, *part.sent, *made) if node in differentiable
        ),
    )


def _write(
    program: TorchProgram, part: Part[TorchStep], given: Sequence[fx.Node], made: Sequence[fx.Node]
) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {node: graph.placeholder(node.name) for node in given}
    state_names = [program.state_names[node] for node in part.parameters]
    updated = [program.updates[value] for value in part.made if value in program.updates]
    attributes = {name: graph.get_attr(name) for name in dict.fromkeys((*state_names, *updated))}
    for node in part.parameters:
        copies[node] = attribute = attributes[program.state_names[node]]
        if program.state_names[node] in updated:
            # What is read is kept for the backward, so it must not be what changes.
            copies[node] = graph.call_function(torch.ops.aten.clone.default, (attribute,))
    for step in part.bindings:
        copies[step.var] = graph.node_copy(step.var, copies.__getitem__)
    for value in part.made:
        if value in program.updates:
            buffer = attributes[program.updates[value]]
            graph.call_function(torch.ops.aten.copy_.default, (buffer, copies[value]))
    graph.output(tuple(copies[value] for value in made))
    graph.lint()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns of attributes that were not made by add_module.
        return fx.GraphModule({name: program.state[name] for name in attributes}, graph)


def _describe(nodes: Sequence[fx.Node]) -> tuple[TensorInfo, ...]:
    infos = []
    for node in nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not all(isinstance(extent, int) for extent in value.shape):
            raise TunerError(f"{node.name!r} is {value!r}, and only tensors cross a cut; cut elsewhere")
        infos.append(
            TensorInfo(
                name=node.name,
                shape=tuple(value.shape),
                dtype=str(value.dtype).removeprefix("torch."),
                num_bytes=value.numel() * value.element_size(),
            )
        )
    return tuple(infos)


def _tied(stages: Sequence[TorchStage]) -> tuple[tuple[TiedParameter, ...], ...]:
    """Group the places of each weight of several stages by the tensor itself, in order of first place."""
    places: dict[int, list[TiedParameter]] = {}
    for index, stage in enumerate(stages):
        for name in stage.parameters:
            tensor = stage.module.get_parameter(name)
            places.setdefault(id(tensor), []).append(TiedParameter(name, index))
    groups = map(tuple, places.values())
    return tuple(group for group in groups if len({member.stage for member in group}) > 1)

"""List the layers of a Relax model between which it can be cut.

Layers are found by module names (see `tuner.stages.cut_points`); a model without them (an ONNX file, say) is
cut wherever a single tensor carries everything, with a product between any two cuts. Checked in
tests/tuner/stages/test_layers.py.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import tvm_ffi

from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.stages.cut_points import (
    Span,
    divide_spans,
    layer_spans,
    module_starts,
    name_up_to,
    positions_after,
    split_spans,
)
from tuner.stages.liveness import Part, find_flow, input_free
from tuner.stages.program import (
    Binding,
    Program,
    is_tensor,
    operator_name,
    read_program,
    tensor_info,
    write_module,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A run of bindings that a cut may set apart.

    Attributes:
        name: path of its module, or of its modules joined by `+`.
        start: position of its first binding.
        stop: one more than the position of its last.
        parameters: names of the weights that it reads, in order of first use.
        fingerprint: equal for layers of equal structure, whatever their names and weights.
    """

    name: str
    start: int
    stop: int
    parameters: tuple[str, ...]
    fingerprint: str


def layers_of(model: Model, *, at_branches: bool = False, in_parts: bool = False) -> tuple[Layer, ...]:
    """List the layers of a model in order; together they hold every binding once.

    Args:
        at_branches: whether a layer that holds the end of one branch and the beginning of another, such as
            two towers, is divided there, and where branches meet.
        in_parts: whether layers are divided where that sends no more than a cut between them, such as a
            transformer's block between attention and feed-forward.

    Raises:
        TunerError: the model cannot be read, or has no bindings.
    """
    program = read_program(model)
    if not program.bindings:
        raise TunerError(f"model {model.name!r} computes nothing, so there is nothing to cut; choose another")
    spans = find_spans(model, program)
    if in_parts:
        spans = divide_spans(spans, part_names(model.module_paths, program, spans))
    if at_branches:
        spans = tuple(_merge_idle(program, split_spans(model.module_paths, spans, branch_positions(program))))
    parts = find_flow(program, [span.start for span in spans[1:]]).parts
    return tuple(_layer(program, part, span) for part, span in zip(parts, spans, strict=True))


def find_spans(model: Model, program: Program) -> tuple[Span, ...]:
    """Find where each layer of a model begins and ends."""
    spans = layer_spans(model.module_paths) or _spans_of_single_tensors(program)
    return tuple(_merge_idle(program, spans))


def cut_between(layers: Sequence[Layer], layer_cuts: Iterable[int]) -> tuple[int, ...]:
    """Turn layers at which stages begin, as `choose_cuts` gives them, into positions for `build_stages`."""
    return tuple(layers[index].start for index in layer_cuts)


def cut_after(model: Model, names: Iterable[str] | None = None) -> tuple[int, ...]:
    """Turn names of modules into positions at which a new stage begins: right after each of them.

    Without names those count that the model's own code marked with `cut_pipeline_stage`.
    Names, and what is raised for those that mean no one place, are as `positions_after` has them.
    """
    spans = [Span(layer.name, layer.start, layer.stop) for layer in layers_of(model)]
    return positions_after(model.module_paths, spans, model.cuts if names is None else names)


def part_names(paths: Sequence[str], program: Program, spans: Sequence[Span]) -> dict[int, str]:
    """Find where layers can be divided, and name what ends there.

    A part begins with a module, has a product, as what is left of its layer does, and is sent no more bytes
    than the layer is sent, or sends.
    """
    wanted = {span: module_starts(paths, span) for span in spans}
    borders = sorted({*(span.start for span in spans[1:]), *itertools.chain(*wanted.values())})
    crossing = find_flow(program, borders).crossing
    # Nothing is sent before the first layer, nor after the last.
    bytes_at = Counter(
        {
            position: sum(tensor_info(value, "").num_bytes for value in values)
            for position, values in zip(borders, crossing, strict=True)
        }
    )
    products = [index for index, binding in enumerate(program.bindings) if _is_product(binding)]
    found: dict[int, str] = {}
    for span, starts in wanted.items():
        allowed = max(bytes_at[span.start], bytes_at[span.stop])
        begun = span.start
        for position in starts:
            is_worth_it = _has_product(products, begun, position) and _has_product(
                products, position, span.stop
            )
            if not is_worth_it or bytes_at[position] > allowed:
                continue
            name = name_up_to(paths, position)
            if name:
                found[position] = name
                begun = position
    return found


def branch_positions(program: Program) -> tuple[int, ...]:
    """Find where a branch begins, and where it meets what stands before it; rising.

    A branch is a run of bindings that reads nothing made before it, up to the first that does, with a product
    in the run and one before it: the second of two towers, say.
    """
    free = input_free(program)
    made_at = {
        binding.var: position for position, binding in enumerate(program.bindings) if binding.var not in free
    }
    reads_back_to = [
        [made_at[read] for read in binding.reads if read in made_at] for binding in program.bindings
    ]
    products = [index for index, binding in enumerate(program.bindings) if _is_product(binding)]
    found: set[int] = set()
    for first, binding in enumerate(program.bindings):
        is_root = binding.var in made_at and not reads_back_to[first]
        if not is_root or not _holds_one(products, 0, first):
            continue
        meets = next(
            (
                place
                for place in range(first, len(reads_back_to))
                if any(made < first for made in reads_back_to[place])
            ),
            first,
        )
        if _holds_one(products, first, meets):
            found |= {first, meets}
    return tuple(sorted(found))


def _spans_of_single_tensors(program: Program) -> list[Span]:
    """Cut wherever what crosses is one tensor that the model computed from its inputs.

    Each layer begins with a product and what follows it, where the model has any: a layer of an activation
    alone would balance nothing, and be measured like any other.
    """
    num_bindings = len(program.bindings)
    crossing = find_flow(program, range(1, num_bindings)).crossing
    products = [index for index, binding in enumerate(program.bindings) if _is_product(binding)]
    single = [
        position for position, values in enumerate(crossing, 1) if len(values) == 1 and is_tensor(values[0])
    ]
    borders = [0]
    for start, stop in itertools.pairwise((*single, num_bindings)):
        if _holds_one(products, borders[-1], start) and _holds_one(products, start, stop):
            borders.append(start)
    spans = itertools.pairwise((*borders, num_bindings))
    return [Span(program.names[program.bindings[stop - 1].var], start, stop) for start, stop in spans]


def _holds_one(products: Sequence[int], start: int, stop: int) -> bool:
    """Say whether a range holds one of the products, or whether there are none at all."""
    return not products or _has_product(products, start, stop)


def _has_product(products: Sequence[int], start: int, stop: int) -> bool:
    return bisect.bisect_left(products, start) < bisect.bisect_left(products, stop)


def _is_product(binding: Binding) -> bool:
    return operator_name(binding.value).startswith(("matmul", "nn.conv", "nn.attention"))


def _merge_idle(program: Program, spans: Sequence[Span]) -> list[Span]:
    """Give a layer that computes nothing from the user's inputs (positions, say) to the layer after it."""
    parts = find_flow(program, [span.start for span in spans[1:]]).parts
    merged: list[Span] = []
    idle: Span | None = None
    for span, part in zip(spans, parts, strict=True):
        whole = _joined(idle, span) if idle is not None else span
        idle = None if part.bindings else whole
        if idle is None:
            merged.append(whole)
    if idle is not None and merged:
        merged[-1] = _joined(merged[-1], idle)
    return merged


def _joined(first: Span, second: Span) -> Span:
    return Span(f"{first.name}+{second.name}", first.start, second.stop)


def _layer(program: Program, part: Part[Binding], span: Span) -> Layer:
    module = write_module(
        part.bindings,
        inputs=(*part.received_and_read, *part.inputs, *part.parameters),
        outputs=part.made,
        names={},
        functions=program.functions,
    )
    return Layer(
        name=span.name,
        start=span.start,
        stop=span.stop,
        parameters=tuple(program.names[parameter] for parameter in part.parameters),
        fingerprint=f"{tvm_ffi.structural_hash(module['main']) & (2**64 - 1):016x}",
    )

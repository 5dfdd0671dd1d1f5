"""Find the layers of a model that can be cut apart, and the place in the program that a cut by name means.

A model is a line of bindings, each of which knows the module it came from. A *layer* is a run of bindings:
one element of a numbered container (`h.0`, `encoder.layer.3`, `layer1.0`), or all that stands between two
of them (`wte+wpe`, `ln_f+lm_head`, the loss included). A model without numbered containers is a line of its
top modules; one without module names (an ONNX file, say) is cut wherever a single tensor carries
everything.

A cut is a position in `main`'s bindings: a new stage begins with the binding at that position. Any position
will do, so a cut inside nested modules needs no special case: what a cut within `encoder` and one within
`decoder` leave between them becomes a stage of its own, whatever modules it takes parts of. (Slapo, Chen et
al., ASPLOS 2024, section 3.3.2, propagates such cuts to the common ancestor module; on a program without a
module tree the result is the same.) Checked in tests/tuner/stages/test_layers.py.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tvm_ffi

from tuner.errors import TunerError, UnknownNameError
from tuner.frontend.model import Model
from tuner.stages.liveness import Part, find_flow
from tuner.stages.program import Program, is_tensor, read_program, write_module

_Span: TypeAlias = tuple[str, int, int]
"""A layer to be: its name, the position of its first binding, and one more than that of its last."""


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


def layers_of(model: Model) -> tuple[Layer, ...]:
    """List the layers of a model in order; together they hold every binding once.

    Raises:
        TunerError: the model cannot be read, or has no bindings.
    """
    program = read_program(model)
    if not program.bindings:
        raise TunerError(
            f"model {model.name!r} computes nothing, so there is nothing to cut; choose another model"
        )
    units = _units(model.module_paths)
    spans = _spans_of_modules(units) if any(units) else _spans_of_single_tensors(program)
    spans = _merge_idle(program, spans)
    parts = find_flow(program, tuple(start for _, start, _ in spans[1:])).parts
    return tuple(_layer(program, part, span) for part, span in zip(parts, spans, strict=True))


def cut_between(layers: Sequence[Layer], layer_cuts: Iterable[int]) -> tuple[int, ...]:
    """Turn layers at which stages begin, as `choose_cuts` gives them, into positions for `build_stages`."""
    return tuple(layers[index].start for index in layer_cuts)


def cut_after(model: Model, names: Iterable[str]) -> tuple[int, ...]:
    """Turn names of modules into positions at which a new stage begins: right after each of them.

    Args:
        names: in any order, each the dotted path of a module (`transformer.h.3`, `encoder.layer.5`), the end
            of such a path where only one module ends so (`h.3`), the name of a layer (`wte+wpe`), or
            `layer:3` for the one module numbered 3.

    Raises:
        UnknownNameError: no module is called so, or several are; the message lists the nearest.
        TunerError: a cut leaves a stage empty, or the module runs in several places.
    """
    layers = layers_of(model)
    position_by_name = {name: _end_of(model, name, layers) for name in names}
    for name, position in position_by_name.items():
        if position >= len(model.module_paths):
            raise TunerError(
                f"nothing runs after {name!r}, so a cut there leaves an empty stage; cut earlier"
            )
    positions = sorted(position_by_name.values())
    if len(set(positions)) < len(positions):
        raise TunerError(
            f"two of the cuts {sorted(position_by_name)} fall on the same place, which leaves a stage empty; "
            "drop one"
        )
    return tuple(positions)


def layer_names(model: Model, start: int, stop: int) -> tuple[str, ...]:
    """Name the layers, or parts of layers, within a range of bindings."""
    return tuple(name for name, _, _ in _spans_of_modules(_units(model.module_paths)[start:stop]) if name)


def _end_of(model: Model, name: str, layers: Sequence[Layer]) -> int:
    by_name = {layer.name: layer for layer in layers}
    if name in by_name:
        return by_name[name].stop
    module = _module_called(model, name, layers)
    inside = [index for index, path in enumerate(model.module_paths) if _within(path, module)]
    between = model.module_paths[inside[0] : inside[-1] + 1]
    foreign = [path for path in between if not _within(path, module) and not _within(module, path) and path]
    if foreign:
        raise TunerError(
            f"module {module!r} runs in several places, with {foreign[0]!r} between them, so a cut after "
            "it means "
            "no one place; cut after a module that runs once, or one of its runs, numbered `#1`, `#2`, …"
        )
    end = inside[-1] + 1
    while end < len(model.module_paths) and not model.module_paths[end]:
        end += 1  # What belongs to no module stays with what came before it, as in `layers_of`.
    return end


def _module_called(model: Model, name: str, layers: Sequence[Layer]) -> str:
    modules = sorted({prefix for path in model.module_paths if path for prefix in _prefixes(path)})
    if name in modules:
        return name
    suffix = name.removeprefix("layer:")
    ends = [module for module in modules if module.endswith(f".{suffix}")]
    if name.startswith("layer:"):
        ends = [layer.name for layer in layers if _is_numbered(layer.name) and layer.name in ends]
    if len(ends) == 1:
        return ends[0]
    names = [*modules, *(layer.name for layer in layers)]
    near = ends or difflib.get_close_matches(name, names, n=5, cutoff=0.4) or [layer.name for layer in layers]
    found = "no module" if not ends else f"{len(ends)} modules"
    raise UnknownNameError(f"the model has {found} {name!r}, so no one place to cut at; choose from {near}")


def _units(paths: Sequence[str]) -> list[str]:
    """Name the layer-sized module that each binding belongs to; `""` where it belongs to none."""
    opened = {""}
    for path in paths:
        prefixes = _prefixes(path)
        numbered = next((index for index, prefix in enumerate(prefixes) if _is_numbered(prefix)), None)
        opened.update(prefixes[:numbered] if numbered is not None else ())
    if opened == {""}:
        opened.update(_only_children(paths))
    return [next((prefix for prefix in _prefixes(path) if prefix not in opened), "") for path in paths]


def _spans_of_modules(units: Sequence[str]) -> list[_Span]:
    """Group bindings into runs."""
    has_numbered = any(_is_numbered(unit) for unit in units)
    first = next((unit for unit in units if unit), "")
    filled = list(itertools.accumulate(units, lambda before, unit: unit or before, initial=first))[1:]
    groups: list[tuple[list[str], int, int]] = []
    position = 0
    for unit, run in itertools.groupby(filled):
        stop = position + len(list(run))
        mergeable = has_numbered and groups and not _is_numbered(unit) and not _is_numbered(groups[-1][0][-1])
        if mergeable:
            merged, start, _ = groups[-1]
            groups[-1] = ([*merged, unit], start, stop)
        else:
            groups.append(([unit], position, stop))
        position = stop
    names = [_joined(tuple(dict.fromkeys(names))) for names, _, _ in groups]
    return [
        (name if names.count(name) == 1 else f"{name}#{names[:index].count(name) + 1}", start, stop)
        for index, (name, (_, start, stop)) in enumerate(zip(names, groups, strict=True))
    ]


def _spans_of_single_tensors(program: Program) -> list[_Span]:
    """Cut wherever what crosses is one tensor that the model computed from its inputs."""
    num_bindings = len(program.bindings)
    crossing = find_flow(program, range(1, num_bindings)).crossing
    borders = [
        position for position, values in enumerate(crossing, 1) if len(values) == 1 and is_tensor(values[0])
    ]
    spans = itertools.pairwise((0, *borders, num_bindings))
    return [(program.names[program.bindings[stop - 1].var], start, stop) for start, stop in spans]


def _merge_idle(program: Program, spans: Sequence[_Span]) -> list[_Span]:
    """Give a layer that computes nothing from the user's inputs (positions, say) to the layer after it."""
    parts = find_flow(program, tuple(start for _, start, _ in spans[1:])).parts
    merged: list[_Span] = []
    pending: _Span | None = None
    for (name, start, stop), part in zip(spans, parts, strict=True):
        if pending is not None:
            name, start = f"{pending[0]}+{name}", pending[1]
        pending = None if part.bindings else (name, start, stop)
        if pending is None:
            merged.append((name, start, stop))
    if pending is not None and merged:
        merged[-1] = (f"{merged[-1][0]}+{pending[0]}", merged[-1][1], pending[2])
    return merged


def _layer(program: Program, part: Part, span: _Span) -> Layer:
    name, start, stop = span
    module = write_module(
        part.bindings,
        inputs=(*part.received_and_read, *part.inputs, *part.parameters),
        outputs=part.made,
        names={},
        functions=program.functions,
    )
    fingerprint = f"{tvm_ffi.structural_hash(module['main']) & (2**64 - 1):016x}"
    parameters = tuple(program.names[parameter] for parameter in part.parameters)
    return Layer(name=name, start=start, stop=stop, parameters=parameters, fingerprint=fingerprint)


def _prefixes(path: str) -> list[str]:
    return [
        ".".join(prefix)
        for prefix in itertools.accumulate(([part] for part in path.split(".")), list.__add__)
    ]


def _is_numbered(unit: str) -> bool:
    return unit.rpartition(".")[2].isdigit()


def _within(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _only_children(paths: Sequence[str]) -> list[str]:
    """List the modules that hold all others: cutting the model at its root alone would be no cut."""
    prefix_lists = [_prefixes(path) for path in paths if path]
    shortest = min((len(prefixes) for prefixes in prefix_lists), default=0)
    columns = (
        set(column) for column in zip(*(prefixes[: shortest - 1] for prefixes in prefix_lists), strict=True)
    )
    return [next(iter(column)) for column in itertools.takewhile(lambda column: len(column) == 1, columns)]


def _joined(names: tuple[str, ...]) -> str:
    return "+".join(names) if len(names) <= 3 else f"{names[0]}+…+{names[-1]}"

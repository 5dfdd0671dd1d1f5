"""Locate a cut by module name in a sequence of operators annotated with their modules.

A *layer* is a run of operators: one element of a numbered container (`h.0`, `encoder.layer.3`, `layer1.0`),
or all that stands between two of them (`wte+wpe`, `ln_f+lm_head`, the loss included). A model without
numbered containers is a line of its top modules. An operator that belongs to no module stays with what came
before it. Runs of a module that is called in several places are numbered `name#1`, `name#2`, …

A layer has *parts* where a module within it begins, such as the norm before a feed-forward layer. `h.3.attn+`
names the one up to there: `h.3.attn` and what `h.3` does with its result, a residual sum.

A cut is a position: a new stage begins with the operator there. Any position will do, so a cut inside nested
modules needs no special case: what a cut within `encoder` and one within `decoder` leave between them
becomes a stage of its own, whatever modules it takes parts of. (Slapo, Chen et al., ASPLOS 2024, section
3.3.2, propagates such cuts to the common ancestor module; on a line of operators the result is the same.)

Everything here works on paths alone, for Relax and torch alike. Checked in tests/tuner/stages/test_layers.py.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tuner.errors import TunerError, UnknownNameError

_AND_ON = "+"
"""Follows the name of a module: with what modules around it do next, up to where another begins."""


class Span(NamedTuple):
    """A run of operators: its name, the position of the first, and one more than that of the last."""

    name: str
    start: int
    stop: int


def layer_spans(paths: Sequence[str]) -> tuple[Span, ...]:
    """Group operators into layers by the paths of their modules; none where no operator has a path."""
    return tuple(_numbered_runs(_merged_runs(_units(paths))))


def names_within(paths: Sequence[str], spans: Sequence[Span], start: int, stop: int) -> tuple[str, ...]:
    """Name the layers between two positions, so that a cut after the last of these names falls at `stop`.

    A layer whose beginning alone is there goes by its last module that ends there.
    """
    inside = [span for span in spans if span.start < stop and start < span.stop]
    return tuple(span.name if span.stop <= stop else _name_ending_at(paths, span, stop) for span in inside)


def split_spans(paths: Sequence[str], spans: Sequence[Span], positions: Iterable[int]) -> tuple[Span, ...]:
    """Divide the layers that hold a position inside, and name the parts by the modules that they hold."""
    units = _units(paths)
    inside = set(positions)
    divided: list[Span] = []
    for span in spans:
        borders = [span.start, *sorted(at for at in inside if span.start < at < span.stop), span.stop]
        if len(borders) == 2:
            divided.append(span)
            continue
        whole = _names_of(units[span.start : span.stop])
        for start, stop in itertools.pairwise(borders):
            names = _names_of(units[start:stop])
            if names and names != whole:
                name = _joined(names)
            else:
                # Within one module; the last part keeps the layer's name, since it ends with it.
                name = (name_up_to(paths, stop) if stop < span.stop else "") or span.name
            divided.append(Span(name, start, stop))
    return tuple(divided)


def module_starts(paths: Sequence[str], span: Span) -> tuple[int, ...]:
    """Find the positions within a layer, its first left out, where the operators of another module begin."""
    starts = []
    before = ""
    for position in range(span.start, span.stop):
        path = paths[position]
        if before and path and not _within(before, path):
            starts.append(position)
        before = path or before
    return tuple(starts)


def name_up_to(paths: Sequence[str], position: int) -> str:
    """Name what ends where a module begins, so that a cut after it falls there; empty where nothing does."""
    begun = paths[position]
    # What stands last may belong to a module around the one that ends.
    ended = next((path for path in reversed(paths[:position]) if path and not _within(begun, path)), "")
    for module in _prefixes(ended) if ended else ():
        if _last_end(paths, module) == position:
            return module
        if _end_and_on(paths, module) == position:
            return f"{module}{_AND_ON}"
    return ""


def divide_spans(spans: Sequence[Span], names: Mapping[int, str]) -> tuple[Span, ...]:
    """Divide layers at positions inside; the last part of a layer keeps its name, since it ends with it."""
    divided: list[Span] = []
    for span in spans:
        inside = sorted(position for position in names if span.start < position < span.stop)
        for start, stop in itertools.pairwise((span.start, *inside)):
            divided.append(Span(names[stop], start, stop))
        divided.append(Span(span.name, inside[-1] if inside else span.start, span.stop))
    return tuple(divided)


def positions_after(paths: Sequence[str], spans: Sequence[Span], names: Iterable[str]) -> tuple[int, ...]:
    """Turn names into positions at which a new stage begins: right after each of them.

    Args:
        paths: path of each operator's module.
        spans: the model's layers.
        names: in any order, each the dotted path of a module (`transformer.h.3`, `encoder.layer.5`), the end
            of such a path where only one module ends so (`h.3`), the name of a layer (`wte+wpe`),
            `layer:3` for the one module numbered 3, or `h.3.attn+` for a module and what those around it do
            with its result.

    Raises:
        UnknownNameError: no module is called so, or several are; the message lists the nearest.
        TunerError: a cut leaves a stage empty, or the module runs in several places.
    """
    position_by_name = {name: _end_of(paths, spans, name) for name in names}
    for name, position in position_by_name.items():
        if position >= len(paths):
            raise TunerError(
                f"nothing runs after {name!r}, so a cut there leaves an empty stage; cut earlier"
            )
    positions = sorted(position_by_name.values())
    if len(set(positions)) < len(positions):
        raise TunerError(
            f"two of the cuts {sorted(position_by_name)} fall on the same place, which leaves a stage "
            "empty; drop one"
        )
    return tuple(positions)


def _end_of(paths: Sequence[str], spans: Sequence[Span], name: str) -> int:
    by_name = {span.name: span for span in spans}
    if name in by_name:
        return by_name[name].stop
    module = _module_called(paths, spans, name.removesuffix(_AND_ON))
    inside = [index for index, path in enumerate(paths) if _within(path, module)]
    between = paths[inside[0] : inside[-1] + 1]
    foreign = [path for path in between if path and not _within(path, module) and not _within(module, path)]
    if foreign:
        raise TunerError(
            f"module {module!r} runs in several places, with {foreign[0]!r} between them, so a cut after it "
            "means no one place; cut after a module that runs once, or one of its runs, numbered `#1`, …"
        )
    return _end_and_on(paths, module) if name.endswith(_AND_ON) else _last_end(paths, module)


def _name_ending_at(paths: Sequence[str], span: Span, stop: int) -> str:
    """Name what ends at a position within a layer: a module, a part of the layer, or else the layer."""
    path = next((path for path in reversed(paths[span.start : stop]) if path), "")
    ends = (prefix for prefix in _prefixes(path) if path and _last_end(paths, prefix) == stop)
    return next(ends, "") or (name_up_to(paths, stop) if stop < len(paths) else "") or span.name


def _end_and_on(paths: Sequence[str], module: str) -> int:
    """Find where a module's last run ends with what modules around it do next."""
    end = _last_end(paths, module)
    while end < len(paths) and _within(module, paths[end] or module):
        end += 1
    return end


def _last_end(paths: Sequence[str], module: str) -> int:
    """Find where a module's last run ends; what belongs to no module stays with what came before it."""
    end = max(index for index, path in enumerate(paths) if _within(path, module)) + 1
    while end < len(paths) and not paths[end]:
        end += 1
    return end


def _module_called(paths: Sequence[str], spans: Sequence[Span], name: str) -> str:
    modules = sorted({prefix for path in paths if path for prefix in _prefixes(path)})
    if name in modules:
        return name
    suffix = name.removeprefix("layer:")
    ends = [module for module in modules if module.endswith(f".{suffix}")]
    if name.startswith("layer:"):
        ends = [span.name for span in spans if _is_numbered(span.name) and span.name in ends]
    if len(ends) == 1:
        return ends[0]
    layers = [span.name for span in spans]
    known = dict.fromkeys([*modules, *layers])
    near = ends or difflib.get_close_matches(name, known, n=5, cutoff=0.4) or layers
    found = f"{len(ends)} modules" if ends else "no module"
    raise UnknownNameError(f"the model has {found} {name!r}, so no one place to cut at; choose from {near}")


def _units(paths: Sequence[str]) -> list[str]:
    """Name the layer-sized module that each operator belongs to; `""` where it belongs to none."""
    opened = {""}
    for path in paths:
        prefixes = _prefixes(path)
        numbered = next((index for index, prefix in enumerate(prefixes) if _is_numbered(prefix)), None)
        opened.update(prefixes[:numbered] if numbered is not None else ())
    if opened == {""}:
        opened.update(_only_children(paths))
    return [next((prefix for prefix in _prefixes(path) if prefix not in opened), "") for path in paths]


def _merged_runs(units: Sequence[str]) -> list[Span]:
    """Group operators of one unit, and join units that stand side by side between numbered ones."""
    first = next((unit for unit in units if unit), "")
    if not first:
        return []
    has_numbered = any(map(_is_numbered, units))
    filled = list(itertools.accumulate(units, lambda before, unit: unit or before, initial=first))[1:]
    groups: list[tuple[list[str], int, int]] = []
    position = 0
    for unit, run in itertools.groupby(filled):
        stop = position + len(list(run))
        if has_numbered and groups and not _is_numbered(unit) and not _is_numbered(groups[-1][0][-1]):
            merged, start, _ = groups[-1]
            groups[-1] = ([*merged, unit], start, stop)
        else:
            groups.append(([unit], position, stop))
        position = stop
    return [Span(_joined(tuple(dict.fromkeys(names))), start, stop) for names, start, stop in groups]


def _numbered_runs(spans: Sequence[Span]) -> list[Span]:
    names = [span.name for span in spans]
    return [
        span
        if names.count(span.name) == 1
        else span._replace(name=f"{span.name}#{names[: index + 1].count(span.name)}")
        for index, span in enumerate(spans)
    ]


def _names_of(units: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(unit for unit in units if unit))


def _only_children(paths: Sequence[str]) -> list[str]:
    """List the modules that hold all others: cutting the model at its root alone would be no cut."""
    prefix_lists = [_prefixes(path) for path in paths if path]
    shortest = min((len(prefixes) for prefixes in prefix_lists), default=0)
    columns = (
        set(column) for column in zip(*(prefixes[: shortest - 1] for prefixes in prefix_lists), strict=True)
    )
    return [next(iter(column)) for column in itertools.takewhile(lambda column: len(column) == 1, columns)]


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def _is_numbered(unit: str) -> bool:
    return unit.rpartition(".")[2].isdigit()


def _within(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _joined(names: tuple[str, ...]) -> str:
    return "+".join(names) if len(names) <= 3 else f"{names[0]}+…+{names[-1]}"

"""Programs of one model for several shapes, as one that is called in any of them.

A call whose inputs have the shapes of a program is run by that. Where padding is stated, another is run by
the smallest program that its inputs fit into: they are filled up at the end of each axis, and results are cut
along the axes that grow with those. That no result depends on what fills an axis is the model's own affair
(causal attention, a mask that is filled with 0, the batch); `check_padding` tries it. Checked in
tests/tessel/compiling/test_several_shapes.py.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tessel.compiling.program import Program
from tessel.compiling.program_file import Fill, write_program
from tuner.runtime.native import aligned_copy

_TOLERANCES = {"float16": 3e-2, "bfloat16": 3e-2}
"""Largest error of a padded result, of the largest value; a thousandth for other types."""

Shapes = tuple[tuple[int, ...], ...]


class ShapedProgram(Program):
    """Programs for several shapes, called in each of them.

    Args:
        programs: of one model; they take the same inputs in other shapes.
        padding: what fills up the inputs that may be padded, by name.

    Raises:
        ValueError: there is no such input, or a result's shape does not follow from that of padded inputs.
    """

    def __init__(self, programs: Sequence[Program], padding: Mapping[str, Fill]) -> None:
        self.programs = tuple(sorted(programs, key=lambda each: -_num_elements(_shapes_of(each))))
        super().__init__(
            self.programs[0].compiled,
            own_results=self.programs[0].results,
            write_library=self.programs[0].write_library,
            source=self.programs[0].source,
        )
        self._by_shapes = {_shapes_of(each): each for each in self.programs}
        names = [spec.name for spec in self.manifest.inputs]
        for name in padding:
            if name not in names:
                raise ValueError(f"padding names {name!r}, which is no input; they are {', '.join(names)}")
        self.padding = dict(padding)
        self._fills = {at: padding[name] for at, name in enumerate(names) if name in padding}
        self._grows = self._growing_axes() if padding else ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns for the arguments.

        Raises:
            TypeError: an argument is missing, unknown, no tensor, or of another data type; names it.
            ValueError: no program takes an input's shape; names it and the shapes that there are.
        """
        leaves = self.leaves(args, kwargs)
        shapes = tuple(tuple(getattr(leaf, "shape", ())) for leaf in leaves)
        exact = self._by_shapes.get(shapes)
        if exact is not None:
            return exact.run(leaves)
        larger = self.padded_by(shapes)
        if larger is None:
            raise self._misfit(leaves, shapes)
        return self.run_padded(larger, leaves, shapes)

    def padded_by(self, shapes: Shapes) -> Program | None:
        """Return the smallest program that runs inputs of these shapes with padding; None where none does."""
        return next((each for each in reversed(self.programs) if self.fits(shapes, each)), None)

    def fits(self, shapes: Shapes, program: Program) -> bool:
        """Say whether a program runs inputs of these shapes with padding."""
        pairs = zip(shapes, _shapes_of(program), strict=True)
        return all(self._fits(at, given, own) for at, (given, own) in enumerate(pairs))

    def _fits(self, at: int, given: tuple[int, ...], own: tuple[int, ...]) -> bool:
        if given == own or at not in self._fills:
            return given == own
        return len(given) == len(own) and all(0 < one <= most for one, most in zip(given, own, strict=True))

    def run_padded(self, program: Program, leaves: Sequence[Any], shapes: Shapes) -> Any:
        """Return a larger program's results for inputs that are filled up, cut to what was given."""
        own = _shapes_of(program)
        filled = [
            leaf if given == wanted else _filled(leaf, wanted, self._fills[at])
            for at, (leaf, given, wanted) in enumerate(zip(leaves, shapes, own, strict=True))
        ]
        cuts = [tuple(_kept(axes, shapes, axis) for axis, axes in enumerate(each)) for each in self._grows]
        return program.run(filled, cut=lambda at, result: result[cuts[at]])

    def _growing_axes(self) -> tuple[tuple[tuple[tuple[int, int], ...], ...], ...]:
        """Return for each axis of each result the axes of padded inputs whose extents it has in all programs.

        Raises:
            ValueError: it has the extents of none, and yet grows.
        """
        extents: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for at in self._fills:
            for axis, found in enumerate(zip(*(own[at] for own in self._by_shapes), strict=True)):
                if len(set(found)) > 1:
                    extents.setdefault(found, []).append((at, axis))
        results = zip(*(program.manifest.outputs for program in self._by_shapes.values()), strict=True)
        found_axes = []
        for at, specs in enumerate(results):
            axes = []
            for axis, found in enumerate(zip(*(spec.shape for spec in specs), strict=True)):
                if len(set(found)) > 1 and found not in extents:
                    raise ValueError(
                        f"axis {axis} of result {at} has extents {sorted(set(found))}, which no padded input "
                        "has: it cannot be cut to what was given; leave padding out"
                    )
                axes.append(tuple(extents.get(found, ())))
            found_axes.append(tuple(axes))
        return tuple(found_axes)

    def _misfit(self, leaves: Sequence[Any], shapes: Shapes) -> ValueError:
        """Return what is wrong with inputs that no program takes.

        Raises:
            TypeError: one is no tensor, or of another data type.
        """
        for at, (spec, leaf) in enumerate(zip(self.manifest.inputs, leaves, strict=True)):
            known = list(dict.fromkeys(own[at] for own in self._by_shapes))
            if shapes[at] not in known and hasattr(leaf, "shape"):
                most = ", or any that one of these holds" if at in self._fills else ""
                return ValueError(
                    f"input {spec.name!r} has shape {list(shapes[at])}, but there are programs for "
                    f"{', '.join(str(list(each)) for each in reversed(known))}{most}; compile it for that "
                    "shape, too"
                )
        self.programs[0].prepared(leaves)  # no tensor, or of another type
        described = "; ".join(str([list(each) for each in own]) for own in self._by_shapes)
        return ValueError(f"no program takes inputs of these shapes together; there are {described}")

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the programs to one file, which holds weights once that several of them have alike."""
        compiled = [program.compiled for program in self.programs]
        libraries = [program.write_library() for program in self.programs]
        return write_program(compiled, libraries, path, padding=self.padding)

    def explain(self) -> str:
        """Return a table of who runs what for each of the shapes."""
        return "\n\n".join(f"{program!r}\n{program.explain()}" for program in self.programs)

    def __repr__(self) -> str:
        shapes = " or ".join(str([list(each) for each in own]) for own in self._by_shapes)
        return f"<tessel program {self.manifest.model} for inputs of {shapes}>"


def check_padding(program: ShapedProgram, draw: Callable[[Program], Sequence[np.ndarray]]) -> None:
    """Compare each program's results with those that the next larger one gives for padded inputs.

    Args:
        program: with padding.
        draw: gives inputs of a program.

    Raises:
        ValueError: they differ, so that padding changes what is computed.
    """
    for small, large in zip(program.programs[1:], program.programs, strict=False):
        shapes = _shapes_of(small)
        if not program.fits(shapes, large):
            continue
        inputs = [aligned_copy(array) for array in draw(small)]
        at = first_difference(program.run_padded(large, inputs, shapes), small.run(inputs))
        if at is not None:
            raise ValueError(
                f"result {at} for inputs of {[list(each) for each in shapes]} is another one when they "
                f"are padded to {[list(each) for each in _shapes_of(large)]}: what the model computes "
                "depends on what fills them up; give a mask that hides it, or leave padding out"
            )


def first_difference(found: Any, expected: Any) -> int | None:
    """Return the position of the first result, of trees of arrays, that is another one; None if none is."""
    pairs = enumerate(zip(_flat(found), _flat(expected), strict=True))
    return next((at for at, (one, other) in pairs if not _agree(one, other)), None)


def _kept(axes: Sequence[tuple[int, int]], shapes: Shapes, axis: int) -> slice:
    """Return what is kept of an axis of a result."""
    extents = {shapes[at][its] for at, its in axes}
    if len(extents) > 1:
        raise ValueError(
            f"axis {axis} of a result grows with several inputs, which have {sorted(extents)} there; "
            "give them one extent"
        )
    return slice(next(iter(extents), None))


def _agree(found: np.ndarray, expected: np.ndarray) -> bool:
    if found.shape != expected.shape:
        return False
    if expected.dtype.kind not in "fV":
        return bool((found == expected).all())
    tolerance = _TOLERANCES.get(expected.dtype.name, 1e-3)
    one, other = found.astype(np.float64), expected.astype(np.float64)
    scale = float(np.abs(other).max(initial=0.0))
    return bool(np.allclose(one, other, rtol=0, atol=tolerance * scale, equal_nan=True))


def _flat(tree: Any) -> list[np.ndarray]:
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, tuple | list):
        return [leaf for item in tree for leaf in _flat(item)]
    return [np.asarray(tree)] if hasattr(tree, "dtype") else []


def _filled(leaf: Any, shape: tuple[int, ...], fill: Fill) -> Any:
    """Return an input filled up at the end of each axis."""
    at_start = tuple(map(slice, leaf.shape))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(leaf, torch.Tensor):
        tensor = leaf.new_full(shape, fill)
        tensor[at_start] = leaf
        return tensor
    given = np.from_dlpack(leaf) if not isinstance(leaf, np.ndarray) else leaf
    array = aligned_copy(np.broadcast_to(np.asarray(fill, given.dtype), shape))
    array[at_start] = given
    return array


def _shapes_of(program: Program) -> Shapes:
    return tuple(spec.shape for spec in program.manifest.inputs)


def _num_elements(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes))

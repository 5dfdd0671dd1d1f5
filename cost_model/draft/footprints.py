"""Footprints of tiles: the part of a tensor that each touches, from its loops' extents alone. Checked in
tests/cost_model/draft/test_decision_features.py, by counting elements."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_model.draft.decision_space import Access

Array = npt.NDArray[np.float64]


def tile_bytes_of(access: Access, extents: list[Array]) -> Array:
    """Return the bytes of the box that a tile touches of one tensor."""
    widths = widths_of(access, extents)
    return np.asarray(np.prod(widths, axis=0) * access.element_bytes)


def widths_of(access: Access, extents: list[Array]) -> list[Array]:
    """Return how many indices of each dimension a tile touches."""
    one = np.ones_like(extents[0])
    return [
        one + sum(abs(step) * (extent - 1) for step, extent in zip(steps, extents, strict=True) if step)
        for steps in access.steps
    ] or [one]


def vector_step(access: Access, loop: int) -> int:
    """Return 0 where vectors are broadcast, 1 where they are contiguous, 2 where they are gathered."""
    steps = [each[loop] for each in access.steps]
    if not any(steps):
        return 0
    return 1 if abs(steps[-1]) == 1 and not any(steps[:-1]) else 2

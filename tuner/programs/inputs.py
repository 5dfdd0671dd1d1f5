"""Inputs of micro-batches: drawn from a seed, alike in every process.

Whole numbers are drawn below what their tables hold. A module may ask for more of them, such as one mark of a
picture for each of its patches; where it refuses what is drawn, or gives NaN for it, its example's whole
numbers are taken in every micro-batch, and what is drawn besides (floating-point inputs, labels, masks of
dropout) tells micro-batches apart. Checked in tests/tuner/programs/test_inputs.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from tuner.frontend.model import InputSpec, Model
from tuner.frontend.torch.arrays import as_array, as_tensor
from tuner.frontend.values import draw_mask
from tuner.programs.step_results import Tensors

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class InputDraws:
    """What gives the inputs of every micro-batch; it holds no model.

    Attributes:
        given: whole numbers by name of input that are not drawn.
    """

    specs: Sequence[InputSpec]
    seed: int
    given: Mapping[str, np.ndarray] = field(default_factory=dict)

    def tensors(self, micro_batch: int) -> Tensors:
        """Return the inputs of a micro-batch by name."""
        rng = np.random.default_rng([self.seed, 1, micro_batch])
        return {
            spec.name: aligned(self.given[spec.name] if spec.name in self.given else _drawn(spec, rng))
            for spec in self.specs
        }

    def arrays(self, micro_batch: int) -> dict[str, np.ndarray]:
        """Return the same as arrays."""
        return {name: as_array(value) for name, value in self.tensors(micro_batch).items()}


def draws_of(model: Model, seed: int) -> InputDraws:
    """Return what gives a model's inputs.

    A model that was imported from a module with whole numbers among its inputs runs once, on the first draw.
    """
    draws = InputDraws(model.inputs, seed)
    reference = model.reference
    examples = {} if reference is None else reference.examples_of(model.inputs)
    whole = {name: array for name, array in examples.items() if _is_whole(array)}
    if reference is None or not whole:
        return draws
    reason = why_refused(lambda: reference.outputs(draws.arrays(0)))
    if not reason:
        return draws
    logger.info("%s takes its example's whole numbers, not drawn ones: %s", model.name, reason)
    return replace(draws, given=whole)


def draw_inputs(model: Model, seed: int, micro_batch: int) -> Tensors:
    """Return the inputs of one micro-batch; the same in every process."""
    return draws_of(model, seed).tensors(micro_batch)


def why_refused(run: Callable[[], Sequence[np.ndarray]]) -> str:
    """Return why a module gives no numbers when it is run; empty where it gives some."""
    try:
        found = run()
    except Exception as error:  # foreign code: the user's own module
        return str(error).strip().partition("\n")[0] or type(error).__name__
    is_nan = any(np.isnan(array.astype(np.float64)).any() for array in found)
    return "its outputs hold NaN" if is_nan else ""


def aligned(values: np.ndarray) -> torch.Tensor:
    """Return a copy in torch's memory, which is aligned to 64 bytes as TVM asks; NumPy's is not."""
    return as_tensor(values).clone()


def _is_whole(array: np.ndarray) -> bool:
    """Say whether an example holds whole numbers or truth values."""
    return array.dtype == bool or np.issubdtype(array.dtype, np.integer)


def _drawn(spec: InputSpec, rng: np.random.Generator) -> np.ndarray:
    if spec.dropout is not None:
        return draw_mask(spec, rng)
    if "float" in spec.dtype:
        return rng.standard_normal(spec.shape).astype(spec.dtype)
    return rng.integers(0, spec.high, spec.shape).astype(spec.dtype)

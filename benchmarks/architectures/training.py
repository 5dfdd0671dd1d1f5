"""Train an architecture in stages, and compare the loss and every gradient with those of plain torch.

Each function of each stage is partitioned (`given_prices`) and lowered, as `tessel tune --train` does it; the
joint backward and its two halves are run. The reference is the module under torch's own autograd.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.architectures.finding import Finding, limit_of
from benchmarks.architectures.given_prices import MIXED, partition_by, run_partitioned
from tuner.frontend.loading import for_training
from tuner.frontend.model import IRModule, Model
from tuner.stages import (
    Stage,
    StageFunction,
    build_stages,
    check_gradients,
    choose_cuts,
    cut_between,
    layers_of,
    with_all_gradients,
)
from tuner.tuning.partitioned_function import PartitionedFunction

PREFERRED = MIXED
"""Parts of every backend side by side: cheaper to compile than kernels of `tvm` alone, and more is seen."""


class CannotTrainError(Exception):
    """A model has no loss, or is one layer."""


def stages_of(model: Model, num_stages: int) -> tuple[Model, tuple[Stage, ...]]:
    """Return a model with a loss, and its stages, of as many layers each as can be.

    Raises:
        CannotTrainError: it gives no logits and no loss, or cannot be cut.
    """
    try:
        trained = with_all_gradients(for_training(model))
    except ValueError as error:
        raise CannotTrainError(str(error)) from error
    layers = layers_of(trained)
    if len(layers) < num_stages:
        raise CannotTrainError(f"its {len(layers)} layers cannot be cut in {num_stages} stages")
    cuts = choose_cuts([1.0] * len(layers), [0] * len(layers), num_stages)
    return trained, build_stages(trained, cut_between(layers, cuts))


def functions_of(stage: Stage) -> dict[str, StageFunction]:
    """Return a stage's functions by their names in a plan."""
    functions = {
        "forward": stage.forward,
        "backward": stage.backward,
        "backward_input": stage.backward_input,
        "backward_weight": stage.backward_weight if stage.backward_input is not None else None,
    }
    return {f"{stage.name}.{name}": each for name, each in functions.items() if each is not None}


def partition_stages(stages: Sequence[Stage]) -> dict[str, PartitionedFunction]:
    """Return every function of every stage with its partition, by name."""
    return {
        name: partition_by(function.module, PREFERRED, name=name)
        for stage in stages
        for name, function in functions_of(stage).items()
    }


def check_training(model: Model, num_stages: int) -> Finding:
    """Compare the loss and every gradient of a model in stages with torch's."""
    try:
        trained, stages = stages_of(model, num_stages)
    except CannotTrainError as error:
        return Finding(outcome="inapplicable", reason=str(error))
    except Exception as error:  # foreign code; whatever it raises is the result
        return Finding.of_error(error)
    try:
        partitioned = partition_stages(stages)
        module_of = {
            id(function.module): partitioned[name].module
            for stage in stages
            for name, function in functions_of(stage).items()
        }

        def run(module: IRModule, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            return run_partitioned(module_of.get(id(module), module), inputs)

        deviation = check_gradients(trained, stages, seed=0, run=run)
    except Exception as error:  # as above
        return Finding.of_error(error)
    return Finding.of_deviation(deviation, limit_of(model))

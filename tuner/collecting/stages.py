"""Gather stages for the cost model: each layer of the zoo's models, forward and backward, with several mixes.

Each distinct function of a layer is partitioned at predicted prices, by the mix and by each backend alone;
then its parts are measured, and it as a whole. So a stage costs as many measurements as it has parts, and not
as it has candidates. Resumable and budgeted as `tuner.collecting.kernels` is. Checked in
tests/tuner/collecting/test_kernels.py.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tuner.errors import TunerError, UnpriceableError
from tuner.frontend import Model, load_model
from tuner.graph.structure import Structure
from tuner.measuring.launch_penalty import measure_launch_penalty
from tuner.partition.price import Invalid
from tuner.pricing.measured import MeasuredPricer
from tuner.stages import Stage, StageFunction, build_stages, cut_between, layers_of
from tuner.tuning.partitioned_function import PartitionedFunction, choose_partition, price_function
from tuner.tuning.session import Session, TuningProgress
from tuner.tuning.stage_costs.stage_pricing import price_stage


def collect_stages(
    session: Session,
    *,
    networks: Sequence[str],
    batches: Sequence[int],
    time_limit_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measure functions of single layers until all are done or time is up; return how many there are now.

    The session's records must hold enough kernels to predict from: `collect` gathers them.

    Args:
        networks: models as `load_model` names them.
        batches: batch sizes at which each is loaded.
        time_limit_s: longest to go on; None for no limit.
        clock: seconds, monotonic.

    Raises:
        CostModelError: there is too little to predict prices from.
        UnknownNameError: there is no such model.
    """
    deadline = None if time_limit_s is None else clock() + time_limit_s
    penalty_us = measure_launch_penalty(session.measurer).latency_us
    # Prices only choose the partitions here: predictions do.
    predicting = replace(session, pricing=replace(session.pricing, mode="model"))
    num_done = 0
    seen: set[Structure] = set()
    for batch, name in itertools.product(batches, networks):
        for label, function in _functions(name, batch, seen):
            if deadline is not None and clock() >= deadline:
                return num_done
            session.on_progress(TuningProgress(text=f"{label} at batch {batch}: {num_done} stages measured"))
            num_done += _measure_variants(session, predicting, function, label, penalty_us)
    return num_done


def _measure_variants(
    session: Session, predicting: Session, function: StageFunction, label: str, penalty_us: float
) -> int:
    """Measure one function by the mix and by each backend alone; return how many of these could be."""
    priced = price_function(predicting, function.module, name=label, launch_penalty_us=penalty_us)
    variants: dict[str, PartitionedFunction] = {}
    for only in (None, *(backend.name for backend in session.backends)):
        try:
            variant = choose_partition(priced, only=only)
        except UnpriceableError:
            continue
        variants.setdefault(variant.fingerprint, variant)
    num_done = 0
    pricer = MeasuredPricer(priced.graph, session.measurer)
    for variant in variants.values():
        if any(isinstance(price, Invalid) for price in pricer.price(variant.partition.chosen)):
            continue
        try:
            price_stage(session, variant)
        except TunerError:
            continue  # The failure is a record; a training set goes on without it.
        num_done += 1
    return num_done


def _functions(name: str, batch: int, seen: set[Structure]) -> Iterator[tuple[str, StageFunction]]:
    """Yield each function of a network's layers that was not seen yet, and of pairs of layers."""
    for training in (False, True):
        try:
            model = load_model(name, batch=batch, training=training)
            stages = (*_stages(model, 1), *_stages(model, 2))
        except TunerError:
            continue  # Not every network has a loss, or gradients of all it does.
        for stage in stages:
            for kind in ("forward", "backward", "backward_input", "backward_weight"):
                function: StageFunction | None = getattr(stage, kind)
                if function is None or Structure(function.module) in seen:
                    continue
                seen.add(Structure(function.module))
                yield f"{name}.{stage.name}.{kind}", function


def _stages(model: Model, num_layers: int) -> tuple[Stage, ...]:
    """Return the model as stages of so many layers each; the last may have fewer."""
    layers = layers_of(model)
    cuts = cut_between(layers, range(num_layers, len(layers), num_layers))
    return build_stages(model, cuts, constant_weights=not model.training)

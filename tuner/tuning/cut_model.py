"""Cuts of a model into stages: as asked for, or so that the slowest is as fast as can be.

Costs of single layers decide: each distinct layer is a stage of its own for that purpose, so that the twelve
equal blocks of a transformer are measured once. What no cut can fit or hold is refused before anything is
measured. Checked in tests/tuner/tuning/test_tune.py and test_measure_shards.py.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.lowering.workload_of import workload_of
from tuner.plan import Figure
from tuner.pricing.protocol import is_spent
from tuner.shards.vocabulary import holds_words
from tuner.stages import (
    Layer,
    Stage,
    build_stages,
    choose_cuts,
    cut_after,
    cut_between,
    layers_of,
    with_all_gradients,
)
from tuner.stages.placed_stages import (
    LayerCosts,
    PlacedStages,
    can_place,
    choose_placed_cuts,
    layer_reads,
)
from tuner.tuning.partitioned_function import PartitionedFunction, choose_partition, price_function
from tuner.tuning.session import Session, TuningProgress
from tuner.tuning.stage_costs.stage_pricing import predict_stage, price_stage

_LayerKey: TypeAlias = tuple[str, ...]
"""Names what a layer's functions are; equal for equal layers."""

_WEIGHT_COPIES = 2
"""Weights and their gradients, which every stage holds when training; one copy when not."""


def require_cuts(
    model: Model,
    *,
    num_stages: int,
    cuts: Sequence[str] | None = None,
    memory_limit_bytes: int | None = None,
    are_ends_divided: bool = False,
    placed: PlacedStages | None = None,
) -> None:
    """Refuse, before anything is measured, what a model cannot be cut into.

    Args:
        num_stages: how many stages a chain has, or devices if its ends are divided.
        cuts: names of modules after which a stage ends; found if None.
        memory_limit_bytes: what a stage may need where cuts are found; None for no limit. Whether given cuts
            fit is for the schedule search to judge.
        are_ends_divided: whether the first and the last layer are divided, and only those between are cut.
        placed: in place of a chain, the stages that are to hold the model.

    Raises:
        TunerError: there are no such layers, too few of them, or other cuts than stages, or every cut has a
            stage that does not fit; names the layer.
    """
    if placed is not None:
        _require_no_given_cuts(model, cuts, "a placement of branches or divided blocks finds its cuts itself")
        require_placeable(model, placed, memory_limit_bytes)
        return
    if are_ends_divided:
        layers = _layers_between_ends(model, num_stages, cuts)
    elif _given_cuts(model, num_stages, cuts) is not None or num_stages < 2:
        return
    else:
        layers = layers_of(model)
    has_limit = memory_limit_bytes is not None and num_stages > 1
    choose_cuts(
        [1.0] * len(layers),
        _layer_bytes(model, _alone(model, layers)) if has_limit else [0] * len(layers),
        num_stages,
        memory_limit_bytes=memory_limit_bytes,
        names=[layer.name for layer in layers],
    )


def _require_no_given_cuts(model: Model, cuts: Sequence[str] | None, why: str) -> None:
    if cuts is not None or model.cuts:
        raise TunerError(f"{why}; leave out cuts and marks")


def _given_cuts(model: Model, num_stages: int | None, cuts: Sequence[str] | None) -> tuple[int, ...] | None:
    """Return the positions of cuts that are given or marked in the model, None if there are none."""
    if cuts is None and model.cuts:
        cuts = model.cuts
    if cuts is None:
        return None
    positions = cut_after(model, cuts)
    if num_stages is not None and len(positions) + 1 != num_stages:
        raise TunerError(
            f"{len(positions)} cuts make {len(positions) + 1} stages, but the placement has {num_stages}; "
            "give one cut less than stages, or leave out cuts and marks"
        )
    return positions


def _layers_between_ends(model: Model, num_devices: int, cuts: Sequence[str] | None) -> Sequence[Layer]:
    """Return the layers that an m shape cuts into a stage a device."""
    _require_no_given_cuts(
        model, cuts, "an m shape divides the first and the last layer, and finds the cuts between"
    )
    layers = layers_of(model)
    if num_devices < 2 or len(layers) - 2 < num_devices:
        raise TunerError(
            f"an m shape on {num_devices} devices needs at least 2, and a layer for each between the first "
            f"and the last; {model.name} has {max(0, len(layers) - 2)} there"
        )
    return layers[1:-1]


def _layer_bytes(model: Model, alone: Sequence[Stage]) -> list[int]:
    """Return what each layer needs as a stage of its own, with one micro-batch in flight."""
    copies = _WEIGHT_COPIES if model.training else 1
    return [copies * stage.weight_bytes + stage.saved_bytes for stage in alone]


def cut_chain(
    model: Model,
    session: Session,
    num_stages: int | None,
    cuts: Sequence[str] | None,
    memory_limit_bytes: int | None,
    penalty_us: float,
) -> tuple[int, ...]:
    """Cut where it is asked for, or so that the slowest stage is as fast as can be."""
    given = _given_cuts(model, num_stages, cuts)
    if given is not None:
        return given
    return _find_cuts(model, session, layers_of(model), num_stages or 1, memory_limit_bytes, penalty_us)


def cut_m_shape(
    model: Model,
    session: Session,
    num_devices: int,
    cuts: Sequence[str] | None,
    memory_limit_bytes: int | None,
    penalty_us: float,
) -> tuple[int, ...]:
    """Cut after the first and before the last layer, and the layers between into a stage a device."""
    between = _layers_between_ends(model, num_devices, cuts)
    inner = _find_cuts(model, session, between, num_devices, memory_limit_bytes, penalty_us)
    last = layers_of(model)[-1]
    return (between[0].start, *inner, last.start)


def cut_placed(
    model: Model,
    session: Session,
    placed: PlacedStages,
    cuts: Sequence[str] | None,
    memory_limit_bytes: int | None,
    penalty_us: float,
) -> tuple[int, ...]:
    """Cut as the stages of a placement follow one another; divided ones are the layers with words, or not.

    Raises:
        TunerError: the model marks cuts, has no such branches, or other layers with words than are needed.
    """
    _require_no_given_cuts(model, cuts, "a placement of branches or divided blocks finds its cuts itself")
    layers, alone = _layers_to_place(model, placed.is_chain)
    cut = _placed_cut(model, placed, layers, alone, memory_limit_bytes)
    return cut_between(layers, _cut_by_cost(session, layers, alone, penalty_us, cut))


def require_placeable(model: Model, placed: PlacedStages, memory_limit_bytes: int | None = None) -> None:
    """Refuse a placement that the structure of a model does not offer; measures nothing.

    Args:
        placed: the stages that are to hold it.
        memory_limit_bytes: what a stage may need; None for no limit.

    Raises:
        TunerError: the model has no such branches, other layers with words than are needed, or no cut fits.
    """
    placement_check(model)(placed, memory_limit_bytes)


def placement_check(model: Model) -> Callable[[PlacedStages, int | None], None]:
    """Return `require_placeable` for one model, whose layers are built once for all placements."""
    complete = with_all_gradients(model)
    layers_to_place = functools.cache(functools.partial(_layers_to_place, complete))

    def require(placed: PlacedStages, memory_limit_bytes: int | None) -> None:
        _placed_cut(complete, placed, *layers_to_place(placed.is_chain), memory_limit_bytes)

    return require


def _layers_to_place(model: Model, is_chain: bool) -> tuple[Sequence[Layer], Sequence[Stage]]:
    """Return the layers that a placement's stages may hold, and each as a stage of its own."""
    layers = layers_of(model, at_branches=not is_chain)
    return layers, build_stages(
        model, cut_between(layers, range(1, len(layers))), constant_weights=not model.training
    )


def _placed_cut(
    model: Model,
    placed: PlacedStages,
    layers: Sequence[Layer],
    alone: Sequence[Stage],
    memory_limit_bytes: int | None,
) -> Callable[[Sequence[float]], tuple[int, ...]]:
    """Return what chooses the cuts from the costs of layers, which has been tried with equal ones.

    Raises:
        TunerError: see `require_placeable`.
    """
    with_words = [number for number, stage in enumerate(alone) if holds_words(stage, alone)]
    are_as_many = len(with_words) == len(placed.divided)
    fixed = dict(zip(placed.divided, with_words, strict=False))
    if placed.needs_words and not are_as_many:
        names = ", ".join(layers[number].name for number in with_words) or "none"
        raise TunerError(
            f"the placement divides {len(placed.divided)} layers that hold words over all devices, and "
            f"{model.name} has {len(with_words)} ({names}); choose mshape or a chain"
        )
    costs = LayerCosts(
        names=tuple(layer.name for layer in layers),
        costs_us=(0.0,) * len(layers),
        memory_bytes=tuple(_layer_bytes(model, alone)),
        reads=layer_reads(model, layers),
        memory_limit_bytes=memory_limit_bytes,
    )
    if not placed.needs_words and not (are_as_many and can_place(placed, costs, fixed)):
        fixed = {}

    def cut(costs_us: Sequence[float]) -> tuple[int, ...]:
        return choose_placed_cuts(placed, replace(costs, costs_us=tuple(costs_us)), fixed=fixed)

    cut(costs.costs_us)  # Refused before anything is measured.
    return cut


def _find_cuts(
    model: Model,
    session: Session,
    layers: Sequence[Layer],
    num_stages: int,
    memory_limit_bytes: int | None,
    penalty_us: float,
) -> tuple[int, ...]:
    """Cut between neighbouring layers so that the slowest stage is as fast as can be, by costs of layers."""
    if num_stages == 1:
        return ()
    alone = _alone(model, layers)

    def cut(costs_us: Sequence[float]) -> tuple[int, ...]:
        return choose_cuts(
            costs_us,
            _layer_bytes(model, alone),
            num_stages,
            memory_limit_bytes=memory_limit_bytes,
            communication_us=[float(stage.boundary_bytes) for stage in alone[:-1]],
            names=[layer.name for layer in layers],
        )

    return cut_between(layers, _cut_by_cost(session, layers, alone, penalty_us, cut))


def _cut_by_cost(
    session: Session,
    layers: Sequence[Layer],
    alone: Sequence[Stage],
    penalty_us: float,
    cut: Callable[[Sequence[float]], tuple[int, ...]],
) -> tuple[int, ...]:
    """Return the layers at which stages begin, by what each layer costs alone.

    Where prices are active, layers are predicted from their parts, and measured only while cuts may change.
    """
    keys, functions_of_layer = [], {}
    for index, (layer, stage) in enumerate(zip(layers, alone, strict=True)):
        functions = stage.functions(split=False)
        key = tuple(workload_of(f.module["main"], module=f.module).fingerprint for f in functions.values())
        keys.append(key)
        if key not in functions_of_layer:
            session.on_progress(
                TuningProgress(text=f"layer {layer.name}", completed=index, total=len(layers))
            )
            functions_of_layer[key] = [
                choose_partition(
                    price_function(
                        session,
                        function.module,
                        name=f"{stage.name}.{name}",
                        launch_penalty_us=penalty_us,
                    )
                )
                for name, function in functions.items()
            ]
    return _refine_cuts(session, keys, functions_of_layer, cut)


def _alone(model: Model, layers: Sequence[Layer]) -> Sequence[Stage]:
    """Make a stage of each of these layers, of a model whose other layers are stages too."""
    every = layers_of(model)
    cuts = cut_between(every, range(1, len(every)))
    stages = build_stages(model, cuts, constant_weights=not model.training)
    first = next(index for index, layer in enumerate(every) if layer.start == layers[0].start)
    return stages[first : first + len(layers)]


def _refine_cuts(
    session: Session,
    keys: Sequence[_LayerKey],
    functions_of_layer: Mapping[_LayerKey, Sequence[PartitionedFunction]],
    cut: Callable[[Sequence[float]], tuple[int, ...]],
) -> tuple[int, ...]:
    """Return the cuts, pricing layers as the session's mode says.

    Active: all layers are predicted first. While the slowest stage could, with every unmeasured layer at the
    low end of its interval, be faster than that of the cuts at hand by more than the regret, the layer whose
    interval weighs most in the slowest stage is measured.
    """
    pricing = session.pricing
    price = predict_stage if pricing.mode == "active" else price_stage
    figures = {
        key: [price(session, function) for function in functions]
        for key, functions in functions_of_layer.items()
    }
    while True:
        likely_us = [sum(figure.latency_us for figure in figures[key]) for key in keys]
        hopeful_us = [sum(map(_low_us, figures[key])) for key in keys]
        chosen, hopeful = cut(likely_us), cut(hopeful_us)
        slowest_us, slowest = _slowest_stage(likely_us, chosen)
        at_best_us, _ = _slowest_stage(hopeful_us, hopeful)
        is_settled = at_best_us >= slowest_us * (1 - pricing.regret)
        if pricing.mode != "active" or is_settled or is_spent(pricing):
            return chosen
        doubt_us: dict[_LayerKey, float] = {}
        for index in slowest:
            if likely_us[index] > hopeful_us[index]:
                doubt = likely_us[index] - hopeful_us[index]
                doubt_us[keys[index]] = doubt_us.get(keys[index], 0.0) + doubt
        if not doubt_us:
            return chosen
        wanted = max(doubt_us, key=lambda key: (doubt_us[key], key))
        figures[wanted] = [price_stage(session, function) for function in functions_of_layer[wanted]]
        pricing.num_measured += len(functions_of_layer[wanted])


def _low_us(figure: Figure) -> float:
    """Return the low end of a prediction, and a measured latency as it is."""
    predicted = figure.source == "predicted" and figure.interval_us is not None
    return figure.interval_us[0] if predicted and figure.interval_us is not None else figure.latency_us


def _slowest_stage(costs_us: Sequence[float], cuts: Sequence[int]) -> tuple[float, range]:
    """Return the cost and the layers of the slowest stage, the first of equals."""
    bounds = [0, *cuts, len(costs_us)]
    stages = [range(first, last) for first, last in itertools.pairwise(bounds)]
    slowest = max(stages, key=lambda stage: sum(costs_us[index] for index in stage))
    return sum(costs_us[index] for index in slowest), slowest

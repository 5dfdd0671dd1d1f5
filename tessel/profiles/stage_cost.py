"""Cost of a measured stage, in the terms of a profile.

Where stages were measured in halves, one without them is one whose inputs need no gradient, such as the
first: it does all of its backward in its weight half. Checked in
tests/tessel/profiles/test_table.py and tests/tessel/test_one_builder.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tessel.profiles.figures import MAX_HALVES_RATIO, make_cost
from tessel.profiles.profile import StageCosts
from tuner.plan import Figure, StagePlan


def costs_of_stages(stages: Sequence[StagePlan]) -> tuple[StageCosts, ...]:
    """Return what each stage costs on each device that it runs on, its collectives included.

    Args:
        stages: of one model.

    Raises:
        DocumentError: a figure is beyond what a layer can have.
    """
    is_split = are_split(stages)
    return tuple(
        make_stage_cost(
            without_outlier_backward(figures_of_stage(stage, is_split=is_split)), "the model", stage.name
        )
        for stage in stages
    )


def are_split(stages: Iterable[StagePlan]) -> bool:
    """Return whether backwards of a model's stages were measured in halves."""
    return any(stage.backward_input is not None for stage in stages)


def figures_of_stage(stage: StagePlan, *, is_split: bool) -> dict[str, float | None]:
    """Return the figures of a stage by the names that `StageCosts` has for them.

    Args:
        stage: one of a model.
        is_split: whether backwards of the model's stages were measured in halves.
    """
    joint_us, input_us = _latency_us(stage.backward), _latency_us(stage.backward_input)
    weight_us = _latency_us(stage.backward_weight)
    halved: float = stage.saved_for_weight_bytes
    if is_split and joint_us is not None and input_us is None:
        input_us, weight_us, halved = 0.0, joint_us, stage.saved_bytes
    return {
        "forward_us": stage.forward.latency_us,
        "backward_us": joint_us,
        "backward_input_us": input_us,
        "backward_weight_us": weight_us,
        "weight_bytes": stage.weight_bytes + stage.bound_bytes,
        "saved_bytes": stage.saved_bytes,
        "saved_for_weight_bytes": halved,
        "boundary_bytes": stage.boundary_bytes,
    }


def without_outlier_backward(figures: Mapping[str, float | None]) -> Mapping[str, float | None]:
    """Return the figures, without a joint backward that only another load of the machine explains.

    Units are known here, and the halves one after the other do all that the joint backward does.
    """
    joint, halves = figures["backward_us"], (figures["backward_input_us"], figures["backward_weight_us"])
    together = sum(half or 0.0 for half in halves)
    if joint is None or halves == (None, None) or joint <= MAX_HALVES_RATIO * together:
        return figures
    return {**figures, "backward_us": together}


def make_stage_cost(figures: Mapping[str, float | None], path: object, stage: str) -> StageCosts:
    """Return the cost of a stage; where one half of its backward is missing, it has none."""
    halves = ("backward_input_us", "backward_weight_us")
    filled = dict(figures)
    if any(figures[half] is not None for half in halves):
        filled |= {half: figures[half] or 0.0 for half in halves}
    return make_cost(filled, path, stage, units_are_known=True)


def _latency_us(figure: Figure | None) -> float | None:
    return None if figure is None else figure.latency_us

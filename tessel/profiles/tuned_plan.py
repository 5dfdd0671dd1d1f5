"""Plans of `tessel tune`, documents of `tessel stages` and saved plans of `tessel plan`, as profiles.

Of a plan, a stage is a layer: the planner may join stages, and cannot cut them. A weight that several stages
share ties them; a stage can be tied by one. The measured latency of hops belongs to the machine, not to the
profile, and is left to the planner's options. Checked in tests/tessel/profiles/test_readers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tessel.errors import DocumentError, ScheduleError
from tessel.names import name_of_path
from tessel.plan import load_plan
from tessel.profiles.figures import MAX_HALVES_RATIO, decode_json, make_cost, refusal
from tessel.profiles.profile import MAX_FACTOR, CostTable, Layer, LayerCost, Profile
from tessel.profiles.reading import Reading
from tuner.plan import Figure, StagePlan, TiedParameter


class _Stage(msgspec.Struct):
    """A stage as `tessel stages` prints it, in so far as it costs anything."""

    name: str
    forward_us: float
    backward_us: float | None
    backward_input_us: float | None
    backward_weight_us: float | None
    weight_bytes: int
    saved_bytes: int
    saved_for_weight_bytes: int
    boundary_bytes: int


class _SavedPlan(msgspec.Struct):
    profile: Profile


class _Stages(msgspec.Struct):
    stages: tuple[_Stage, ...]
    tied: tuple[tuple[TiedParameter, ...], ...]


def read_plan(path: Path, text: bytes) -> Reading:
    """Read the stages of a plan of `tessel tune`.

    Raises:
        DocumentError: it is none.
    """
    plan = load_plan(path)
    profile = profile_of_stages(
        plan.stages, plan.tied, name=plan.model, device=plan.device_model, micro_batch=plan.batch, path=path
    )
    return Reading(profile)


def read_stages(path: Path, text: bytes) -> Reading:
    """Read the document of `tessel stages --save`, which does not say the batch size.

    Raises:
        DocumentError: it is none; the message names the key.
    """
    document = decode_json(text, _Stages, path)
    figures = [
        {name: getattr(stage, name) for name in _Stage.__struct_fields__ if name != "name"}
        for stage in document.stages
    ]
    profile = _profile(
        [stage.name for stage in document.stages],
        figures,
        document.tied,
        name=name_of_path(path.stem),
        device="",
        micro_batch=1,
        path=path,
    )
    return Reading(profile, says_micro_batch=False)


def read_saved(path: Path, text: bytes) -> Reading:
    """Read the profile of a plan that `tessel plan` saved.

    Raises:
        DocumentError: it is none; the message names the key.
    """
    return Reading(decode_json(text, _SavedPlan, path).profile)


def profile_of_stages(
    stages: Sequence[StagePlan],
    tied: Sequence[Sequence[TiedParameter]],
    *,
    name: str,
    device: str,
    micro_batch: int,
    path: object = "the model",
) -> Profile:
    """Return the profile whose layers are tuned stages.

    Args:
        stages: in order.
        tied: groups of parameters that are one and the same.
        name: of the model.
        device: kind of device measured on.
        micro_batch: samples of a micro-batch.
        path: where they come from, for messages.

    Raises:
        DocumentError: a figure is beyond what a layer can have, or a stage is divided over devices.
    """
    for stage in stages:
        if stage.shards is not None:
            raise DocumentError(
                f"{path} has {stage.name} on {stage.shards.num_shards} devices, and a profile says "
                "what whole layers cost on one; take the plan of a chain"
            )
    figures = [_figures_of(stage) for stage in stages]
    names = [_name(stage) for stage in stages]
    unique = names if len(set(names)) == len(names) else [stage.name for stage in stages]
    profile = _profile(unique, figures, tied, name=name, device=device, micro_batch=micro_batch, path=path)
    intervals = tuple(map(_interval, stages))
    if intervals.count((1.0, 1.0)) == len(intervals):
        return profile
    (table,) = profile.tables
    return msgspec.structs.replace(profile, tables=(msgspec.structs.replace(table, intervals=intervals),))


def cost_of_stage(stage: StagePlan) -> LayerCost:
    """Return what a stage costs on each device that it runs on, its collectives included.

    Raises:
        DocumentError: a figure is beyond what a layer can have.
    """
    return _cost(_believed(_figures_of(stage)), "the model", stage.name)


def _figures_of(stage: StagePlan) -> dict[str, float | None]:
    return {
        "forward_us": stage.forward.latency_us,
        "backward_us": _latency_us(stage.backward),
        "backward_input_us": _latency_us(stage.backward_input),
        "backward_weight_us": _latency_us(stage.backward_weight),
        "weight_bytes": stage.weight_bytes + stage.bound_bytes,
        "saved_bytes": stage.saved_bytes,
        "saved_for_weight_bytes": stage.saved_for_weight_bytes,
        "boundary_bytes": stage.boundary_bytes,
    }


def _interval(stage: StagePlan) -> tuple[float, float]:
    """Return the interval of a stage's predicted times, as shares of them; its functions err together."""
    figures = [figure for figure in (stage.forward, stage.backward) if figure is not None]
    total = sum(figure.latency_us for figure in figures)
    if not total:
        return 1.0, 1.0
    ends = [
        figure.interval_us
        if figure.source == "predicted" and figure.interval_us is not None
        else (figure.latency_us, figure.latency_us)
        for figure in figures
    ]
    low, high = (sum(end) / total for end in zip(*ends, strict=True))
    return min(1.0, max(low, 1 / MAX_FACTOR)), max(1.0, min(high, MAX_FACTOR))


def _name(stage: StagePlan) -> str:
    """Return the one module that a stage is made of, or its own name."""
    return stage.layers[0] if len(stage.layers) == 1 else stage.name


def _latency_us(figure: Figure | None) -> float | None:
    return None if figure is None else figure.latency_us


def _profile(
    names: Sequence[str],
    figures: Sequence[Mapping[str, float | None]],
    tied: Sequence[Sequence[TiedParameter]],
    *,
    name: str,
    device: str,
    micro_batch: int,
    path: object,
) -> Profile:
    ties: dict[int, str] = {}
    for group in tied:
        stages = sorted({member.stage for member in group})
        if len(stages) > 1 and not any(stage in ties for stage in stages):
            ties |= dict.fromkeys(stages, group[0].name)
    believed = [_believed(each) for each in figures]
    notes = tuple(
        f"{stage}: its joint backward was measured as {each['backward_us'] or 0:.0f} us, far more than its "
        "halves, which are taken in its place; measure again on an idle machine"
        for stage, each, taken in zip(names, figures, believed, strict=True)
        if taken is not each
    )
    costs = [_cost(each, path, stage) for stage, each in zip(names, believed, strict=True)]
    try:
        return Profile(
            name=name_of_path(name),
            device=name_of_path(device),
            layers=tuple(Layer(stage, ties.get(index, "")) for index, stage in enumerate(names)),
            tables=(CostTable(micro_batch=micro_batch, tensor_parallel=1, costs=tuple(costs)),),
            notes=notes,
        )
    except ScheduleError as error:
        raise refusal(path, "", error, "make it again") from error


def _believed(figures: Mapping[str, float | None]) -> Mapping[str, float | None]:
    """Return the figures, without a joint backward that only another load of the machine explains.

    Units are known here, and the halves one after the other do all that the joint backward does.
    """
    joint, halves = figures["backward_us"], (figures["backward_input_us"], figures["backward_weight_us"])
    together = sum(half or 0.0 for half in halves)
    if joint is None or halves == (None, None) or joint <= MAX_HALVES_RATIO * together:
        return figures
    return {**figures, "backward_us": together}


def _cost(figures: Mapping[str, float | None], path: object, stage: str) -> LayerCost:
    """Return the cost of a stage; where one half of its backward is missing, it has none."""
    halves = ("backward_input_us", "backward_weight_us")
    filled = dict(figures)
    if any(figures[half] is not None for half in halves):
        filled |= {half: figures[half] or 0.0 for half in halves}
    return make_cost(filled, path, stage)

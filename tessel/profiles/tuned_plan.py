"""Plans of `tessel tune`, documents of `tessel stages` and saved plans of `tessel plan`, as profiles.

Of a plan, a stage is a layer: the planner may join stages, and cannot cut them. A weight that several stages
share ties them; a stage can be tied by one. The measured latency of hops belongs to the machine, not to the
profile, and is left to the planner's options. Checked in tests/tessel/test_one_builder.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tessel.errors import DocumentError, ScheduleError
from tessel.names import name_of_path
from tessel.profiles.figures import decode_json, refusal
from tessel.profiles.profile import MAX_FACTOR, CostTable, Layer, Profile
from tessel.profiles.reading import Reading
from tessel.profiles.stage_cost import are_split, figures_of_stage, make_stage_cost, without_outlier_backward
from tessel.tuned_plan import read_plan as read_document
from tuner.plan import StagePlan, TiedParameter


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
    plan = read_document(path)
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
    is_split = are_split(stages)
    figures = [figures_of_stage(stage, is_split=is_split) for stage in stages]
    names = [_name(stage) for stage in stages]
    unique = names if len(set(names)) == len(names) else [stage.name for stage in stages]
    profile = _profile(unique, figures, tied, name=name, device=device, micro_batch=micro_batch, path=path)
    intervals = tuple(map(_interval, stages))
    if intervals.count((1.0, 1.0)) == len(intervals):
        return profile
    (table,) = profile.tables
    return msgspec.structs.replace(profile, tables=(msgspec.structs.replace(table, intervals=intervals),))


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
    believed = [without_outlier_backward(each) for each in figures]
    notes = tuple(
        f"{stage}: its joint backward was measured as {each['backward_us'] or 0:.0f} us, far more than its "
        "halves, which are taken in its place; measure again on an idle machine"
        for stage, each, taken in zip(names, figures, believed, strict=True)
        if taken is not each
    )
    costs = [make_stage_cost(each, path, stage) for stage, each in zip(names, believed, strict=True)]
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

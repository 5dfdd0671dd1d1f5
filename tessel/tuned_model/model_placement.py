"""The placements that a model can be tuned for, by name: how many stages it is cut into, and where they run.

    vshape          a stage a device                          0 1 2 3
    interleaved:2   two stages a device, round after round    0 1 2 3 0 1 2 3
    zbv             two stages a device, there and back       0 1 2 3 3 2 1 0
    xshape          a stage a device, and a copy back up      0 1 2 3 and 3 2 1 0
    mshape          a stage a device, between the first and   *  0 1 2 3  *
                    the last layer, divided over all
    nnshape         the same with the decoder's embedding     *  0 1  *  2 3  *
                    divided between encoder and decoder
    kshape          two branches that meet in a divided       0 1 ┐
                    stage: two towers                         2 3 ┴ *
    FILE            as the forward blocks of a placement file stand and follow one another

Shapes to search schedules for stand in `tessel.shapes`; these are the ones whose stages can be derived from a
model. A stage on several devices is divided over them: the layers that hold words by words, others by heads
and columns (Megatron-LM). Checked in tests/tessel/tuned_model/test_model_placement.py.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from tessel.documents import load_placement
from tessel.errors import ScheduleError
from tessel.handwritten.construction.stages import NotAPipelineError, read_pipeline

AUTO = "auto"
"""Stands for all of `AUTO_PLACEMENTS`, of which the fastest is taken."""

BASELINE = "vshape"
"""The placement that others are compared with."""

AUTO_PLACEMENTS = (BASELINE, "interleaved:2", "zbv", "xshape", "mshape")

BRANCHED_PLACEMENTS = ("nnshape", "kshape")
"""Of models whose structure offers them: `auto` tries these beside the layout that is planned."""

NAMED_PLACEMENTS = (*AUTO_PLACEMENTS, *BRANCHED_PLACEMENTS)
"""All that a model can be asked to be placed as by name."""

MAX_CHUNKS = 8
"""Most stages of one device: beyond, hops cost more than a shorter warm-up saves."""

_INTERLEAVED = re.compile(r"interleaved(?::([0-9]{1,3}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlacement:
    """Where the stages of a model run.

    Attributes:
        name: as a user writes it.
        chain: the device of each stage of the chain.
        divides_ends: whether the first and the last layer are divided over all devices, before and after the
            chain.
        copies: of the chain; the second of two goes over the devices in the opposite direction.
        stages: in place of the chain, of an nnshape, a kshape or a file: the devices of each stage.
        before: with them, the stages that each receives from.
        needs_words: whether each divided one of `stages` must be a layer that holds words.
    """

    name: str
    chain: tuple[int, ...]
    divides_ends: bool = False
    copies: int = 1
    stages: tuple[tuple[int, ...], ...] = ()
    before: tuple[tuple[int, ...], ...] = ()
    needs_words: bool = False


def model_placement(name: str, num_devices: int) -> ModelPlacement:
    """Return the placement of that name.

    Args:
        name: one of `NAMED_PLACEMENTS`, with another number of chunks for `interleaved`, or a file.
        num_devices: at least 1.

    Raises:
        ScheduleError: there is no such placement, or it needs other devices.
        DocumentError: the file cannot be read.
    """
    check_placement_name(name)
    if is_file(name):
        return _of_file(name, num_devices)
    there = tuple(range(num_devices))
    if name == BASELINE:
        return ModelPlacement(name=name, chain=there)
    if num_devices < 2:
        raise ScheduleError(f"{name} needs at least 2 devices, and there is {num_devices}; use vshape")
    if name == "zbv":
        return ModelPlacement(name=name, chain=(*there, *there[::-1]))
    if name == "xshape":
        return ModelPlacement(name=name, chain=there, copies=2)
    if name in BRANCHED_PLACEMENTS:
        return _branched(name, num_devices)
    if name == "mshape":
        return ModelPlacement(name=name, chain=there, divides_ends=True)
    return ModelPlacement(name=name, chain=there * _chunks(name))


def placements_to_tune(name: str, num_devices: int) -> tuple[ModelPlacement, ...]:
    """Return the placements that a name asks for, and the one that they are compared with.

    Args:
        name: `auto`, that of one placement, or a file.
        num_devices: at least 1.

    Raises:
        ScheduleError: see `model_placement`.
    """
    names: tuple[str, ...]
    if name != AUTO:
        names = (name,) if name == BASELINE else (name, BASELINE)
    else:
        names = AUTO_PLACEMENTS if num_devices > 1 else (BASELINE,)
    return tuple(model_placement(each, num_devices) for each in names)


def check_placement_name(name: str) -> None:
    """Refuse what names no placement of a model.

    Raises:
        ScheduleError: it does not; says what there is.
    """
    if _INTERLEAVED.fullmatch(name):
        if not 2 <= _chunks(name) <= MAX_CHUNKS:
            raise ScheduleError(
                f"{name} has {_chunks(name)} stages per device; interleaved takes 2 to {MAX_CHUNKS}, such as "
                "interleaved:2"
            )
        return
    if name in (AUTO, *NAMED_PLACEMENTS) or is_file(name):
        return
    near = difflib.get_close_matches(name, (AUTO, *NAMED_PLACEMENTS), n=1, cutoff=0.7)
    hint = f"did you mean {near[0]}? There are" if near else "choose"
    raise ScheduleError(
        f"no model can be placed as {name!r}; {hint} {', '.join((AUTO, *NAMED_PLACEMENTS))} (or another "
        "number of stages per device), or a placement file"
    )


def is_file(name: str) -> bool:
    """Whether a placement is asked for by its file."""
    return name.endswith(".json") or Path(name).is_file()


def _branched(name: str, num_devices: int) -> ModelPlacement:
    """Return the n shape or the k shape of a model."""
    every, half = tuple(range(num_devices)), num_devices // 2
    one_each = tuple((device,) for device in every)
    if name == "nnshape":
        stages = (every, *one_each[:half], every, *one_each[half:], every)
        before = tuple((number - 1,) if number else () for number in range(len(stages)))
        return ModelPlacement(name=name, chain=(), stages=stages, before=before, needs_words=True)
    before = tuple((number - 1,) if number not in (0, half) else () for number in every)
    return ModelPlacement(
        name=name,
        chain=(),
        stages=(*one_each, every),
        before=(*before, (half - 1, num_devices - 1)),
    )


def _of_file(name: str, num_devices: int) -> ModelPlacement:
    """Return the stages of a placement file: its spans and memory are replaced by what is measured.

    Raises:
        ScheduleError: it has other devices, its blocks are no stages, or its stages hold no one model.
        DocumentError: it cannot be read.
    """
    placement = load_placement(name)
    if placement.devices != num_devices:
        raise ScheduleError(
            f"{name} has {placement.devices} devices, and --devices is {num_devices}; give --devices "
            f"{placement.devices}"
        )
    try:
        stages = read_pipeline(placement).stages
    except NotAPipelineError as error:
        raise ScheduleError(f"{name} has blocks that are no stages of a model: {error}") from error
    used = {device for stage in stages for device in stage.devices}
    idle = sorted(set(range(num_devices)) - used)
    if idle:
        raise ScheduleError(f"{name} has no block on device {idle[0]}; place one there, or leave it out")
    forwards = [placement.blocks[stage.forward].name for stage in stages]
    if len({stage.has_backward for stage in stages}) > 1:
        frozen = next(block for block, stage in zip(forwards, stages, strict=True) if not stage.has_backward)
        raise ScheduleError(f"{name} has no backward of {frozen}, and a model is trained in all its stages")
    again = next((stage.recompute for stage in stages if stage.recompute is not None), None)
    if again is not None:
        raise ScheduleError(
            f"{name} recomputes in {placement.blocks[again].name}; leave it out, stages recompute as "
            "--memory asks"
        )
    ends = [block for block, stage in zip(forwards, stages, strict=True) if not stage.after]
    if len(ends) > 1:
        raise ScheduleError(
            f"{name} ends in {' and '.join(ends)}, and a model in one stage, its loss; let one follow "
            "the others"
        )
    return ModelPlacement(
        name=name,
        chain=(),
        stages=tuple(stage.devices for stage in stages),
        before=tuple(stage.before for stage in stages),
    )


def _chunks(name: str) -> int:
    return int(name.partition(":")[2] or 2)

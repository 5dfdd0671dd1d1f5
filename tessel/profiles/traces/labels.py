"""Labels of ranges: which stage, micro-batch and kind of work a name in a profiler's file stands for.

    PP:2B5                       torch.distributed.pipelining: stage 2, backward, micro-batch 5
    Forward 3                    its GPipe; the stage is the rank's
    stage 2 forward mb 5         a `record_function` or NVTX range of one's own; order and case do not matter
    block7 backward              a layer's

Checked in tests/tessel/profiles/traces/test_labels.py.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tessel.placement import BlockKind


class Label(NamedTuple):
    """What a name says.

    Attributes:
        kind: of the work.
        stage: its number; None if the name does not say it.
        micro_batch: its number; None if the name does not say it.
        layer: name of a layer, where the name is that of one; empty of a stage.
    """

    kind: BlockKind
    stage: int | None = None
    micro_batch: int | None = None
    layer: str = ""


_LETTERS = {
    "F": BlockKind.FORWARD,
    "B": BlockKind.BACKWARD,
    "I": BlockKind.BACKWARD_INPUT,
    "W": BlockKind.BACKWARD_WEIGHT,
}

_ACTION = re.compile(r"(?:PP:)?([0-9]{1,6})([FBIW])([0-9]{1,7})")
_OF_RANK = re.compile(r"(Forward|Backward) ([0-9]{1,7})")
_STAGE = re.compile(r"stage[ _=:#-]*([0-9]{1,6})", re.IGNORECASE)
_MICRO_BATCH = re.compile(r"(?:\bmb|_mb|micro[ _-]?batch)[ _=:#-]*([0-9]{1,7})", re.IGNORECASE)
_KINDS = (
    (BlockKind.BACKWARD_INPUT, re.compile(r"(?:backward|bwd)[ _-]?input|dgrad", re.IGNORECASE)),
    (BlockKind.BACKWARD_WEIGHT, re.compile(r"(?:backward|bwd)[ _-]?weights?|wgrad", re.IGNORECASE)),
    (BlockKind.RECOMPUTE, re.compile(r"recompute", re.IGNORECASE)),
    (BlockKind.BACKWARD, re.compile(r"backward|bwd", re.IGNORECASE)),
    (BlockKind.FORWARD, re.compile(r"forward|fwd", re.IGNORECASE)),
)
_COMMUNICATION = re.compile(
    r"send|recv|receive|allreduce|all_reduce|reduce_scatter|all_gather|allgather|wait", re.IGNORECASE
)
_AROUND = " _-.:/#="


def parse_label(text: str) -> Label | None:
    """Return what a name says; None where it is no range of work, such as a send or an optimizer's step.

    What `torch.autograd.profiler.emit_nvtx` puts behind a name (`, op_id = 12`) does not count, and neither
    does the colon that stands before names of NVTX's own domain.
    """
    name = text.partition(", ")[0].removeprefix(":").strip()
    if match := _ACTION.fullmatch(name):
        return Label(_LETTERS[match[2]], int(match[1]), int(match[3]))
    if match := _OF_RANK.fullmatch(name):
        return Label(_LETTERS[match[1][0]], None, int(match[2]))
    if _COMMUNICATION.search(name):
        return None
    matches = ((kind, words.search(name)) for kind, words in _KINDS)
    kind, found = next(((kind, match) for kind, match in matches if match), (None, None))
    if kind is None or found is None:
        return None
    stage, micro_batch = _STAGE.search(name), _MICRO_BATCH.search(name)
    if stage is not None:
        return Label(kind, int(stage[1]), None if micro_batch is None else int(micro_batch[1]))
    rest = (name[: found.start()].rstrip(_AROUND) + " " + name[found.end() :].lstrip(_AROUND)).strip()
    if micro_batch is not None:
        rest = _MICRO_BATCH.sub("", rest).strip(_AROUND)
        return Label(kind, None, int(micro_batch[1]), rest)
    return Label(kind, layer=rest) if rest else None

"""The rules whose orders are timed: which apply to a layout, and what each device runs in turn.

Beside the published schedules there are 1F1B and ZB-H1 with at most K micro-batches in flight, for tight
memory, and all forwards in turn for inference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tessel.handwritten.chimera import CHIMERA
from tessel.handwritten.construction.columns import Columns
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import read_pipeline
from tessel.handwritten.dualpipe_v import DUALPIPE_V
from tessel.handwritten.eager_1f1b import EAGER_1F1B, depths
from tessel.handwritten.gpipe import GPIPE
from tessel.handwritten.interleaved_1f1b import COMBINED_1F1B, INTERLEAVED_1F1B
from tessel.handwritten.looped_bfs import LOOPED_BFS
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B, one_f_one_b
from tessel.handwritten.zero_bubble.v_half import V_HALF
from tessel.handwritten.zero_bubble.v_min import V_MIN
from tessel.handwritten.zero_bubble.zb_h1 import ZB_H1, zero_bubble
from tessel.handwritten.zero_bubble.zb_h2 import ZB_H2
from tessel.handwritten.zero_bubble.zb_v import ZB_V
from tessel.instruction import Forward
from tessel.placement import Placement
from tessel.planning.layout import Layout

# The rule takes pipeline and micro-batches, the last number is the limit of those in flight.
_Streams = Callable[[Placement, int, int], Streams]


def _published(rule: StreamRule) -> _Streams:
    return lambda placement, micro_batches, _: rule.streams(read_pipeline(placement), micro_batches)


def _limited_1f1b(placement: Placement, micro_batches: int, in_flight: int) -> Streams:
    num_stages = placement.devices
    return [
        one_f_one_b(stage, warm_up=min(num_stages - stage, in_flight), micro_batches=micro_batches)
        for stage in range(num_stages)
    ]


def _limited_eager_1f1b(placement: Placement, micro_batches: int, in_flight: int) -> Streams:
    num_stages = placement.devices
    return [
        one_f_one_b(
            stage,
            warm_up=min(depths(stage, num_stages, num_stages - 1), in_flight),
            micro_batches=micro_batches,
        )
        for stage in range(num_stages)
    ]


def _limited_zb_h1(placement: Placement, micro_batches: int, in_flight: int) -> Streams:
    num_stages = placement.devices
    return [
        zero_bubble(
            stage,
            warm_up=min(num_stages - stage, in_flight),
            weight_delay=max(0, min(stage, in_flight - min(num_stages - stage, in_flight))),
            micro_batches=micro_batches,
        )
        for stage in range(num_stages)
    ]


def _forwards(placement: Placement, micro_batches: int, _: int) -> Streams:
    """All forwards in turn, for inference; chunks of a device in groups of as many as there are devices."""
    pipeline = read_pipeline(placement)
    numbers = np.arange(micro_batches)
    group, member = np.divmod(numbers, placement.devices)
    return pipeline.on_devices(
        [
            Columns.by_key(
                *(
                    (Forward, stage, numbers, (group * len(own) + place) * placement.devices + member)
                    for place, stage in enumerate(own)
                )
            )
            for own in _own_in_order(pipeline.chain_devices() or ())
        ]
    )


def _own_in_order(devices: Sequence[int]) -> Iterable[list[int]]:
    for device in dict.fromkeys(devices):
        yield [stage for stage, other in enumerate(devices) if other == device]


STREAMS_OF_RULE: dict[str, _Streams] = {
    **{
        rule.name: _published(rule)
        for rule in (
            GPIPE,
            ONE_F_ONE_B,
            EAGER_1F1B,
            ZB_H1,
            ZB_H2,
            INTERLEAVED_1F1B,
            COMBINED_1F1B,
            LOOPED_BFS,
            ZB_V,
            V_HALF,
            V_MIN,
            DUALPIPE_V,
            CHIMERA,
        )
    },
    "1f1b<": _limited_1f1b,
    "eager-1f1b<": _limited_eager_1f1b,
    "zb-h1<": _limited_zb_h1,
    "forwards": _forwards,
}

MAX_TASKS_OF_EVERY_RULE = 20_000
"""Tasks above which rules that are rarely the best are left out: writing one down takes long."""


_RARELY_BEST = ("gpipe", "zb-h2", "breadth-first")

_BY_PLACEMENT = {
    "vshape": ("1f1b", "zb-h1", "zb-h2", "gpipe"),
    "interleaved": ("interleaved", "breadth-first"),
    "zbv": ("zb-v", "dualpipe-v"),
    "xshape": ("chimera",),
    "mshape": ("1f1b", "gpipe"),
    "kshape": ("1f1b", "gpipe"),
    "custom": (),
}


def rules_of(
    layout: Layout,
    *,
    has_backward: bool,
    is_split: bool,
    in_flight: Sequence[int] = (),
    overlaps: bool = False,
) -> tuple[str, ...]:
    """Return the names of the rules that apply to a layout.

    Args:
        layout: degrees and placement; the cuts do not matter.
        has_backward: whether it is trained.
        is_split: whether its backwards may run in halves.
        in_flight: limits of micro-batches in flight for which 1F1B is wanted.
        overlaps: whether blocks may run together, for which more are in flight.
    """
    if not has_backward:
        return ("forwards",) if layout.placement in ("vshape", "interleaved", "zbv") else ()
    found = [name for name in _BY_PLACEMENT[layout.placement] if _applies(name, layout, is_split)]
    if 2 * len(layout.cuts) * layout.micro_batches > MAX_TASKS_OF_EVERY_RULE:
        found = [name for name in found if name not in _RARELY_BEST] or found
    if overlaps and layout.placement == "vshape" and layout.pipeline > 1:
        found += ["eager-1f1b", *(f"eager-1f1b<{limit}" for limit in _eager_limits(layout.pipeline))]
    if overlaps and layout.placement == "interleaved" and _applies("interleaved", layout, is_split):
        found.append("combined-1f1b")
    if layout.placement == "vshape":
        for limit in in_flight:
            if limit < min(layout.pipeline, layout.micro_batches):
                found += [f"1f1b<{limit}", *([f"zb-h1<{limit}"] if is_split else [])]
    return tuple(found)


def _eager_limits(pipeline: int) -> tuple[int, ...]:
    """Return fewer micro-batches in flight than eager 1F1B has, and no fewer than 1F1B."""
    return tuple(sorted({3 * pipeline // 2, pipeline + 1, pipeline} - {0, 2 * pipeline - 1}, reverse=True))


def _applies(rule: str, layout: Layout, is_split: bool) -> bool:
    if rule in ("zb-h1", "zb-h2", "zb-v"):
        return is_split and (rule != "zb-v" or layout.chunks == 2)
    if rule in ("interleaved", "breadth-first"):
        return layout.micro_batches % layout.pipeline == 0
    if rule == "dualpipe-v":
        return layout.chunks == 2 and layout.micro_batches >= 2 * layout.pipeline
    if rule == "chimera":
        return layout.pipeline % 2 == 0
    return True

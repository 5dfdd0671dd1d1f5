"""V-Min: the building block of the shortest life span, for a third of 1F1B's memory.

Every hop of every phase takes one slot, so a micro-batch is back after 4P slots of which six bring in the
next. With unequal or long passes, and with hops, its time grows most of all: it has no slack.

    device 0   F0 F1 .  f0 b0 w0 .  B0 W0 f1 b1 w1 F2 B1 W1 f2 b2 w2 F3 B2 W2 f3 b3 w3 .  B3 W3
    device 1   .  F0 f0 .  .  b0 B0 F1 f1 w0 W0 b1 B1 F2 f2 w1 W1 b2 B2 F3 f3 w2 W2 b3 B3 w3 W3

Source: Qi et al., Pipeline Parallelism with Controllable Memory (NeurIPS 2024), section 3.2.
"""

from __future__ import annotations

from tessel.handwritten.construction.building_block import Slots, building_block_rule


def building_block(num_devices: int) -> list[Slots]:
    """Return the slots of one micro-batch, one entry per device."""
    # Two slots more at the turn where the passes of the two chunks would otherwise meet modulo the period.
    turn = 2 if num_devices % 3 == 0 else 0
    return [
        (
            device,
            2 * num_devices - 1 - device,
            2 * num_devices + turn + device,
            4 * num_devices + turn - 1 - device,
        )
        for device in range(num_devices)
    ]


V_MIN = building_block_rule("v-min", building_block)

"""V-Half: the building block for half of 1F1B's memory.

A hop down the first chunk, forward or backward, takes two slots and a hop up one; a micro-batch is back after
6P slots, of which six bring in the next.

    device 0   F0 F1 F2 f0 b0 w0 f1 .  B0 b1 w1 f2 W0 F3 B1 b2 w2 f3 b3 B2 w3 B3 W1 W2 W3
    device 1   .  F0 f0 F1 f1 b0 w0 B0 W0 F2 f2 b1 w1 B1 F3 W1 f3 b2 B2 b3 B3 w2 w3 W2 W3

Source: Qi et al., Pipeline Parallelism with Controllable Memory (NeurIPS 2024), section 3.2.
"""

from __future__ import annotations

from tessel.handwritten.construction.building_block import Slots, building_block_rule
from tessel.handwritten.zero_bubble.v_min import V_MIN


def building_block(num_devices: int) -> list[Slots]:
    """Return the slots of one micro-batch, one entry per device."""
    # Three slots more at the turn where the two forwards and backwards would otherwise meet modulo the
    # period.
    turn = 3 if num_devices % 2 == 0 else 0
    return [
        (
            2 * device,
            3 * num_devices - 2 - device,
            3 * num_devices + turn - 1 + 2 * device,
            6 * num_devices + turn - 2 - device,
        )
        for device in range(num_devices)
    ]


V_HALF = building_block_rule("v-half", building_block, includes=(V_MIN,))

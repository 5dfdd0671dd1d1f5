"""Hand-written schedules, one a module, built from per-device instruction streams."""

from tessel.handwritten.gpipe import GPIPE
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.handwritten.rule import Rule, StreamRule
from tessel.handwritten.zb_h1 import ZB_H1

HANDWRITTEN: tuple[Rule, ...] = (GPIPE, ONE_F_ONE_B, ZB_H1)
"""Every hand-written schedule, in the order in which tables list them."""

__all__ = ["HANDWRITTEN", "Rule", "StreamRule"]

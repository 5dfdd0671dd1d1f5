"""Hand-written schedules, one module each, built from per-device instruction streams.

Each module's drawing is what its rule builds (tests/tessel/handwritten/test_drawings.py), its formula holds
and its published figures are met (test_formulas.py), and its orders are PyTorch's where PyTorch has them
(test_against_torch.py). docs/schedules.md lists them all.
"""

from tessel.handwritten.chimera import CHIMERA
from tessel.handwritten.construction.rule import Rule, StreamRule
from tessel.handwritten.dualpipe_v import DUALPIPE_V
from tessel.handwritten.eager_1f1b import EAGER_1F1B
from tessel.handwritten.early_recompute import EARLY_RECOMPUTE_1F1B
from tessel.handwritten.gpipe import GPIPE
from tessel.handwritten.interleaved_1f1b import COMBINED_1F1B, INTERLEAVED_1F1B
from tessel.handwritten.limited_1f1b import LIMITED_1F1B
from tessel.handwritten.looped_bfs import LOOPED_BFS
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.handwritten.zero_bubble.interleaved_zb import INTERLEAVED_ZB
from tessel.handwritten.zero_bubble.v_half import V_HALF
from tessel.handwritten.zero_bubble.v_min import V_MIN
from tessel.handwritten.zero_bubble.zb_h1 import ZB_H1
from tessel.handwritten.zero_bubble.zb_h2 import ZB_H2
from tessel.handwritten.zero_bubble.zb_v import ZB_V

HANDWRITTEN: tuple[Rule, ...] = (
    ONE_F_ONE_B,
    GPIPE,
    EAGER_1F1B,
    EARLY_RECOMPUTE_1F1B,
    LIMITED_1F1B,
    INTERLEAVED_1F1B,
    LOOPED_BFS,
    ZB_H1,
    ZB_H2,
    INTERLEAVED_ZB,
    ZB_V,
    V_HALF,
    V_MIN,
    CHIMERA,
    DUALPIPE_V,
)
"""Every hand-written schedule, in the order in which tables list them."""

OVERLAPPING: tuple[Rule, ...] = (*HANDWRITTEN, COMBINED_1F1B)
"""Those of tables in which forwards and backwards may run together."""

__all__ = ["HANDWRITTEN", "OVERLAPPING", "Rule", "StreamRule"]

"""What `tessel run` prints."""

from __future__ import annotations

import msgspec

from tessel.engine.run import RunFigures


class OrdersWritten(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel run --csv` wrote."""

    orders: str


class RunDone(msgspec.Struct, frozen=True, kw_only=True):
    """What running a schedule beside 1F1B showed.

    Attributes:
        max_gradient_error: largest relative error of a gradient; null where none are checked.
        loss_error: largest relative error of a micro-batch's loss; null without a loss.
        ranks_per_core: ranks that share a core of this machine.
        ranks_per_gpu: ranks on the GPU that most of them share; 0 where they compute on the CPU.
        searched: times of the schedule.
        one_f_one_b: times of 1F1B, as `1f1b`; left out where the schedule is 1F1B or it does not apply.
    """

    max_gradient_error: float | None
    loss_error: float | None
    ranks_per_core: float
    ranks_per_gpu: int
    searched: RunFigures
    one_f_one_b: RunFigures | msgspec.UnsetType = msgspec.field(name="1f1b", default=msgspec.UNSET)

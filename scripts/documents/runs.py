"""Documents of `tessel run`."""

from __future__ import annotations

import msgspec

from tessel.engine.results_check import TensorCheck
from tessel.engine.run import RankMemory, RunFigures


class OrdersWritten(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel run --csv` wrote."""

    orders: str


class NumChecked(msgspec.Struct, frozen=True, kw_only=True):
    """How many gradients, losses and, in inference, outputs were compared, over all schedules.

    Without a reference, how many were searched for NaN and infinity.
    """

    gradients: int
    losses: int
    outputs: int


class RunDone(msgspec.Struct, frozen=True, kw_only=True):
    """What running a schedule beside 1F1B showed.

    Attributes:
        max_gradient_error: largest relative error of a gradient; null where none is checked, or the worst
            has no number.
        loss_error: largest relative error of a micro-batch's loss; null likewise.
        is_right: whether all that was compared is within its tolerance; null where nothing was, unless
            something is NaN or infinite, which is wrong without a reference.
        reference: what it was compared with; null where nothing was.
        checked: how much was compared, or searched for NaN and infinity.
        worst_gradient: the gradient furthest from the reference's; null where none was compared.
        worst_loss: likewise.
        worst_output: likewise; of inference alone.
        failures: all that is wrong, the worst first.
        ranks_per_core: ranks that share a core of this machine.
        ranks_per_gpu: ranks on the GPU that most of them share; 0 where they compute on the CPU.
        nodes: machines that torchrun started ranks on; 1 without it.
        clock_error_ms: by how much times of ranks on other nodes may be off those of rank 0.
        memory: of each rank, what its process was predicted to hold in steps, and what it held.
        sums_ms: sums of gradients over ranks after the last block, measured apart from the steps, which times
            of schedules leave out; null where ranks share no weights.
        searched: times of the schedule.
        one_f_one_b: times of 1F1B, as `1f1b`; left out where the schedule is 1F1B or it does not apply.
    """

    max_gradient_error: float | None
    loss_error: float | None
    is_right: bool | None
    reference: str | None
    checked: NumChecked
    worst_gradient: TensorCheck | None
    worst_loss: TensorCheck | None
    worst_output: TensorCheck | None
    failures: tuple[TensorCheck, ...]
    ranks_per_core: float
    ranks_per_gpu: int
    nodes: int
    clock_error_ms: float
    memory: tuple[RankMemory, ...]
    sums_ms: float | None
    searched: RunFigures
    one_f_one_b: RunFigures | msgspec.UnsetType = msgspec.field(name="1f1b", default=msgspec.UNSET)

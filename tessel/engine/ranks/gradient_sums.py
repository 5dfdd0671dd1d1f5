"""The sums of gradients that end a step, timed on the ranks that share weights.

Stages keep their gradients to themselves in a run that checks them, so tensors of as many bytes are summed in
their place: one all-reduce for all weights that the same ranks share. Ranks begin together, after the steps,
so that neither their memory nor their time is touched; sums of a rank follow one another, as all ranks order
them. Not measured: how far sums hide behind the last blocks of other ranks. Checked in
tests/tessel/tuned_model/test_replicas.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from tessel.engine.job import RankSum

_NO_TIMEOUT = timedelta(days=1)

_FLOAT_BYTES = 4


def time_sums(
    sums: Sequence[RankSum], rank: int, device: torch.device, *, repeats: int, on_host: dist.ProcessGroup
) -> tuple[float, ...]:
    """Return seconds of this rank in its sums, of each repeat after one that does not count.

    Args:
        sums: of all ranks, in one order.
        rank: this rank.
        device: that holds its gradients.
        repeats: how often they are timed.
        on_host: a group of all ranks, which begin together.
    """
    if not sums:
        return ()
    # Every rank makes every group, also those that it is not in.
    groups = {ranks: dist.new_group(list(ranks), timeout=_NO_TIMEOUT) for ranks in _ranks_of(sums)}
    own = [
        (groups[each.ranks], torch.zeros(max(1, each.num_bytes // _FLOAT_BYTES), device=device))
        for each in sums
        if rank in each.ranks
    ]
    found = []
    for _ in range(1 + repeats):
        dist.barrier(on_host)
        begin_s = time.monotonic()
        for group, gradients in own:
            dist.all_reduce(gradients, group=group)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.monotonic() - begin_s)
    return tuple(found[1:])


def _ranks_of(sums: Sequence[RankSum]) -> tuple[tuple[int, ...], ...]:
    return tuple(dict.fromkeys(each.ranks for each in sums))

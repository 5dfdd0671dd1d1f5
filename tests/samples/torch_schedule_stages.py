"""Stages as torch's pipeline schedules see them, without modules and groups: enough to make orders."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import torch


def stages_of_torch(indices: Iterable[int], *, num_stages: int, num_ranks: int) -> list[SimpleNamespace]:
    """Return the stages of these numbers, all on rank 0."""
    return [
        SimpleNamespace(
            stage_index=index,
            num_stages=num_stages,
            group_size=num_ranks,
            group_rank=0,
            group=None,
            is_first=index == 0,
            is_last=index == num_stages - 1,
            has_backward=True,
            device=torch.device("cpu"),
            submod=None,
            stage_index_to_group_rank={},
        )
        for index in indices
    ]

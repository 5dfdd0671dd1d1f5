"""Options of a check, with the names and defaults of the command `tessel check`.

Checked in tests/tessel/jobs/test_planning.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tessel.jobs.inputs.arguments import check_choice, check_counts, parse_bandwidth, parse_bytes, parse_cuts
from tessel.jobs.inputs.limits import check_hop_us, check_overlap_factor, make_budget
from tessel.jobs.inputs.plan_options import (
    DEFAULT_HOP_US,
    DEFAULT_LINK,
    DEFAULT_OPTIMIZER,
    DEGREES,
    OPTIMIZERS,
)

if TYPE_CHECKING:
    from tessel.profiles.profile import Profile
    from tessel.search.budget import SearchBudget

DEFAULT_WORK = 5.0


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What a file does not say.

    Attributes:
        trace: steps that were recorded, in place of orders: CSV, CSV.gz, parquet, or a profiler's traces.
        devices: ranks of the pipeline, for a layout or a table of Megatron.
        micro_batches: of a step, likewise.
        group_size: Megatron's `microbatch_group_size_per_vp_stage`; `devices` if None.
        profile: a table of layer timings, or its path, that gives the stages' costs.
        cuts: first and last layer of each stage of a CSV, `0-5,6-11`; balanced if None.
        memory: of a device: `80GiB` with a profile or plan, else units, one number or one each.
        micro_batch: samples of a micro-batch, of the profile's sizes; the smallest if None.
        data_parallel: replicas of the pipeline.
        tensor_parallel: degree, of those in the profile.
        context_parallel: devices over which sequences are split, likewise.
        expert_parallel: devices over which routed experts are divided, likewise.
        overlap_factor: share of their sum that a forward and a backward of an OVERLAP_F_B cell take; they are
            priced one after the other if None.
        link: bandwidth between devices, such as `100GB/s`, or bytes a second.
        hop_us: microseconds of a message between devices.
        optimizer: whose state is kept in memory.
        work: units of the search of better orders; `DEFAULT_WORK` if it and the limit are None.
        time_limit: of that search, such as `10s`, or seconds.
    """

    trace: str | os.PathLike[str] | None = None
    devices: int | None = None
    micro_batches: int | None = None
    group_size: int | None = None
    profile: str | os.PathLike[str] | Profile | None = None
    cuts: str | None = None
    memory: str | int | Sequence[int] | None = None
    micro_batch: int | None = None
    data_parallel: int = 1
    tensor_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    overlap_factor: float | None = None
    link: str | float = DEFAULT_LINK
    hop_us: float = DEFAULT_HOP_US
    optimizer: str = DEFAULT_OPTIMIZER
    work: float | None = None
    time_limit: str | float | None = None

    def check(self) -> None:
        """Refuse values that are wrong by themselves, before anything is read.

        Raises:
            UsageError: there is one.
        """
        counts = ("devices", "micro_batches", "group_size", "micro_batch", *DEGREES)
        check_counts(self, [name for name in counts if name != "pipeline"])
        check_overlap_factor(self.overlap_factor)
        check_hop_us(self.hop_us)
        check_choice("--optimizer", self.optimizer, OPTIMIZERS)
        parse_bandwidth(self.link)
        if self.profile is not None and self.memory is not None:
            parse_bytes(str(self.memory))
        self.parsed_cuts()
        self.budget()

    def parsed_cuts(self) -> tuple[tuple[int, int], ...] | None:
        """Return first and last layer of each stage; None where they are left out."""
        return None if self.cuts is None else parse_cuts("--cuts", self.cuts)

    def budget(self) -> SearchBudget:
        """Return what the search of better orders may spend."""
        work = DEFAULT_WORK if self.work is None and self.time_limit is None else self.work
        return make_budget(work, self.time_limit)

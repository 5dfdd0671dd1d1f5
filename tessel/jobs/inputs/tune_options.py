"""Options of tuning, with the names and defaults of the command `tessel tune`.

Checked in tests/tessel/jobs/test_planning.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessel.errors import UsageError
from tessel.jobs.inputs.arguments import check_choice, check_counts, parse_bytes
from tessel.jobs.inputs.limits import make_budget
from tuner.tuning.search.options import SearchOptions

OPTIMIZERS = ("none", "sgd", "momentum", "adam")
SHARDINGS = ("none", "optimizer")
"""What copies of a measured pipeline may divide among them: what they gather and sum of weights and gradients
beside each block is not measured."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class TuneOptions(SearchOptions):
    """How a model is cut into stages, placed and scheduled; those of `SearchOptions` say how it is measured.

    Attributes:
        devices: of the pipeline.
        micro_batches: of one step.
        memory: of one device, such as `16GiB`, or bytes; unlimited if None.
        train: whether forward and backward are tuned, or the forward alone.
        batch: samples of a micro-batch of a model of the zoo.
        shape: of inputs by name; several of these are planned in the same stages, cut for the largest.
        value: of inputs that become constants, by name.
        cut: modules after which the model is cut; as it marks them, or found, if None.
        optimizer: whose state each device keeps: one of `OPTIMIZERS`.
        sharding: what copies of the pipeline, replicas and those of an `xshape`, divide among them: `none`,
            or `optimizer`, its state.
        hop_us: latency of one hop; measured if None.
        placement: `vshape`, `interleaved:2`, `zbv`, `xshape`, `mshape`, `nnshape`, `kshape`, the path of a
            placement, or `auto`: as planned from measured layers.
        link: bandwidth between devices in one direction, such as `10GB/s`, or bytes a second; measured
            between processes if None.
        no_recompute: whether all activations are kept.
        work: units of the search of schedules, of about a second each.
        time_limit: of that search, such as `10s`, or seconds.
        graph_level_search: whole programs that an evolutionary search may measure after the first answer.
    """

    devices: int = 4
    micro_batches: int = 16
    memory: str | int | None = None
    train: bool = True
    batch: int = 1
    shape: Shapes | Sequence[Shapes] | None = None
    value: Mapping[str, bool | int | float] | None = None
    cut: Sequence[str] | None = None
    optimizer: str = "sgd"
    sharding: str = "none"
    hop_us: float | None = None
    placement: str | os.PathLike[str] = "vshape"
    link: str | float | None = None
    no_recompute: bool = False
    work: float | None = None
    time_limit: str | float | None = None
    graph_level_search: int = 0

    @property
    def memory_limit_bytes(self) -> int | None:
        """Memory of one device; None without a limit.

        Raises:
            UsageError: it is no size.
        """
        return None if self.memory is None else parse_bytes(str(self.memory))

    @property
    def placement_name(self) -> str:
        """The placement as text."""
        return os.fspath(self.placement)

    def check(self) -> None:
        """Refuse values that are wrong by themselves, before anything is loaded.

        Raises:
            UsageError: there is one.
            ScheduleError: there is no such placement.
        """
        from tessel.tuned_model.model_placement import check_placement_name

        check_placement_name(self.placement_name)
        _ = self.memory_limit_bytes  # which refuses what is no size
        make_budget(self.work, self.time_limit)
        check_counts(self, ("devices", "micro_batches", "batch"))
        check_choice("--optimizer", self.optimizer, OPTIMIZERS)
        check_choice("--sharding", self.sharding, SHARDINGS)
        if self.hop_us is not None and not 0 <= self.hop_us < 1e9:
            raise UsageError(f"--hop-us is {self.hop_us}; a latency is a number of microseconds >= 0")
        if self.devices > 1 and self.hop_us is None and self.target.startswith("rpc://"):
            raise UsageError(
                f"--target {self.target} is behind an RPC tracker, and what a tensor takes from one of its "
                "devices to another is not measured from here; give --hop-us, and --link where stages are "
                "divided"
            )

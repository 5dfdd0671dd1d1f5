"""A rank's shard of a compiled stage: its segments one after another, all-reduces between them.

Every rank that holds the stage has a shard of it, and runs the same segments in the same order, so the
collectives of these ranks meet in order, in a group of their own where others do not hold it. A weight's
gradient is that of the shard's own part until it is asked for, and then whole on every rank. Checked on real
ranks in tests/tuner/programs/test_sharded_program.py and test_placed_programs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist

from tuner.plan import Routes, TensorInfo
from tuner.programs.compiled_stage import CompiledStage, StageMachine
from tuner.programs.step_results import ONLY_COPY, PipelineCopy, Tensors
from tuner.shards.interface import CollectiveKind, ShardedFunction, ShardedStage
from tuner.shards.layouts import Replicated, Split, take_shard
from tuner.stages import Stage, StageFunction

_OPERATIONS: dict[CollectiveKind, dist.ReduceOp.RedOpType] = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


def all_reduce(
    tensor: torch.Tensor, kind: CollectiveKind = "sum", group: dist.ProcessGroup | None = None
) -> None:
    """Reduce a tensor among the ranks of a group, or all, in place."""
    dist.all_reduce(tensor, op=_OPERATIONS[kind], group=group)


class OwnShard:
    """One rank's part of a stage that is divided over all ranks.

    Args:
        stage: over the shards.
        group: the ranks that hold them; all if None.
    """

    def __init__(self, stage: ShardedStage, rank: int, group: dist.ProcessGroup | None = None) -> None:
        self._stage = stage
        self._rank = rank
        self._group = group

    @property
    def num_shards(self) -> int:
        """Over how many ranks the stage is divided."""
        return self._stage.forward.num_shards

    def divides(self, name: str) -> bool:
        """Whether a weight is divided, so that other ranks hold other parts of it."""
        return isinstance(self._stage.layouts.get(name), Split)

    def bytes_of(self, info: TensorInfo) -> int:
        """Return what a tensor of the stage takes on this rank."""
        return self._stage.bytes_of(info)[self._rank]

    def part_of(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """Return this shard's part of a weight, in memory of its own unless it is whole here."""
        layout = self._stage.layouts.get(name, Replicated())
        if not isinstance(layout, Split):
            return whole
        return torch.from_numpy(np.ascontiguousarray(take_shard(whole.numpy(), layout, self._rank))).clone()

    def whole_of(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """Return the whole of what lies as a weight does, from every shard's part; all ranks ask at once."""
        layout = self._stage.layouts.get(name, Replicated())
        if not isinstance(layout, Split):
            return part
        shape = list(part.shape)
        shape[layout.axis] = layout.extent
        whole = torch.zeros(shape, dtype=part.dtype, device=part.device)
        first = 0
        for start, length in layout.pieces[self._rank]:
            whole.narrow(layout.axis, start, length).copy_(part.narrow(layout.axis, first, length))
            first += length
        all_reduce(whole, group=self._group)
        return whole

    def machines(
        self, compiled: Callable[[StageFunction], StageMachine], device: str
    ) -> dict[str, StageMachine]:
        """Compile this shard's segments of every function.

        Args:
            device: where they run, as torch calls it.
        """
        return {
            name: ShardedMachine(
                function,
                [compiled(shards[self._rank]) for shards in function.segments],
                self._rank,
                device,
                self._group,
            )
            for name, function in self._stage.functions().items()
        }


class ShardedMachine:
    """A function over shards as one rank runs it: takes and returns this shard's parts by name.

    Args:
        segments: this rank's, compiled.
        device: where it runs, as torch calls it.
        group: the ranks that hold the shards; all if None.
    """

    def __init__(
        self,
        function: ShardedFunction,
        segments: Sequence[StageMachine],
        rank: int,
        device: str,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._group = group
        self._segments = tuple(segments)
        # What a segment makes is held until the last has run.
        self.storages = tuple(num_bytes for segment in segments for num_bytes in segment.storages)
        self.bound_bytes = sum(segment.bound_bytes for segment in segments)
        self._rounds = function.rounds
        self._sources = function.sources
        self._offsets = {
            offset.name: torch.tensor(
                offset.values[rank], dtype=getattr(torch, offset.dtype), device=device
            ).clone()
            for offset in function.offsets
        }

    def __call__(self, known: Mapping[str, torch.Tensor]) -> Tensors:
        """Run the segments and the collectives between them; return every output by name."""
        held = {**known, **self._offsets}
        for segment, collectives in zip(self._segments, self._rounds, strict=True):
            held |= segment(held)
            for collective in collectives:
                # The term may be read again, so it is not reduced where it lies.
                reduced = held[collective.source].clone(memory_format=torch.contiguous_format)
                all_reduce(reduced, collective.kind, self._group)
                held[collective.result.name] = reduced
        return {name: held[source] for name, source in self._sources.items()}


class ShardedProgram(CompiledStage):
    """A rank's shard of a stage, ready to run; satisfies the engine's `StageProgram`.

    Args:
        stage: the whole stage.
        shard: this rank's part.
        machines: see `OwnShard.machines`.
        weights: this rank's parts of its weights, by name.
        inputs: gives the user's inputs of a micro-batch.
        routes: see `CompiledStage`.
        recomputes: see `CompiledStage`; every rank recomputes alike, so that collectives still meet.
        copy: see `CompiledStage`.
    """

    def __init__(
        self,
        stage: Stage,
        *,
        shard: OwnShard,
        machines: Mapping[str, StageMachine],
        weights: Tensors,
        inputs: Callable[[int], Tensors],
        routes: Routes,
        recomputes: bool = False,
        copy: PipelineCopy = ONLY_COPY,
    ) -> None:
        super().__init__(
            stage,
            machines=machines,
            weights=weights,
            inputs=inputs,
            routes=routes,
            recomputes=recomputes,
            copy=copy,
        )
        self._shard = shard

    @property
    def divided_weights(self) -> frozenset[str]:
        """Names of the weights of which each rank holds a part of its own."""
        return frozenset(name for name in self.weights if self._shard.divides(name))

    def _bytes_of(self, infos: Iterable[TensorInfo], named: Callable[[str], str] = str) -> dict[str, int]:
        return {named(info.name): self._shard.bytes_of(info) for info in infos}

    def gradients(self) -> Tensors:
        """Return each weight's whole gradient; every rank asks for its stages in the same order."""
        return {name: self._shard.whole_of(name, part) for name, part in super().gradients().items()}

    def outputs(self) -> dict[int, Tensors]:
        """Return the model's whole outputs that this stage made; every rank asks in the same order."""
        return {
            micro_batch: {name: self._shard.whole_of(name, part) for name, part in parts.items()}
            for micro_batch, parts in super().outputs().items()
        }

"""A function over shards: for each shard plain functions, and the collectives between them.

    shard 0   segment 0 ─┐            ┌─ segment 1 ─┐            ┌─ segment 2
    shard 1   segment 0 ─┤ all-reduce ├─ segment 1 ─┤ all-reduce ├─ segment 2
    shard 2   segment 0 ─┘            └─ segment 1 ─┘            └─ segment 2

Every shard runs the same segments, in which only extents differ; where they do not, segments of two shards
are the same program, since the index at which a shard's part begins is a tensor that it is given and not a
number in its code. All collectives of a round may start at once. What a later segment reads of an earlier one
stays on the shard, by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tuner.plan import TensorInfo
from tuner.shards.layouts import Layout, Replicated, local_shape
from tuner.stages.interface import StageFunction

CollectiveKind: TypeAlias = Literal["sum", "max", "min"]
"""An all-reduce, named by what it does with the terms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """An all-reduce of one tensor among all shards.

    Attributes:
        kind: how the terms are put together.
        source: name of each shard's term.
        result: the tensor that every shard has afterwards.
    """

    kind: CollectiveKind
    source: str
    result: TensorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """A whole number without axes that each shard is given: where its part of an axis begins.

    Attributes:
        name: under which the segments take it.
        values: one for each shard.
    """

    name: str
    dtype: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedFunction:
    """A function of a stage over shards.

    Attributes:
        segments: by position, then by shard; at least one.
        rounds: the collectives after each segment; none after the last, unless results are still terms.
        inputs: what the whole function takes, described whole, in order.
        outputs: what the whole function returns, described whole, in order.
        layouts: of every input and output, by name; no output is partial.
        sources: the name, among what inputs, segments and collectives make, of each output.
        offsets: further inputs of the segments.
    """

    num_shards: int
    segments: tuple[tuple[StageFunction, ...], ...]
    rounds: tuple[tuple[Collective, ...], ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    layouts: Mapping[str, Layout]
    sources: Mapping[str, str]
    offsets: tuple[Offset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedStage:
    """A stage over shards: its functions, and how each tensor between them lies.

    Attributes:
        forward: see `tuner.stages.interface.Stage`, as the others.
        backward: None where the stage has none, as the others.
        backward_input: first half of the backward.
        backward_weight: second half of the backward.
        layouts: of every input, weight, saved tensor and gradient, by name.
        weight_bytes: bytes of the weights on each shard.
        saved_bytes: bytes on each shard from the forward to the joint backward.
    """

    forward: ShardedFunction
    backward: ShardedFunction | None
    backward_input: ShardedFunction | None
    backward_weight: ShardedFunction | None
    layouts: Mapping[str, Layout]
    weight_bytes: tuple[int, ...]
    saved_bytes: tuple[int, ...]
    saved_for_weight_bytes: tuple[int, ...]

    def functions(self) -> dict[str, ShardedFunction]:
        """Return its functions by name, as `Stage.functions` does."""
        found = {"forward": self.forward, "backward": self.backward}
        if self.backward_input is not None:
            found |= {"backward_input": self.backward_input, "backward_weight": self.backward_weight}
        return {name: function for name, function in found.items() if function is not None}

    def bytes_of(self, info: TensorInfo) -> tuple[int, ...]:
        """Return what a tensor of the stage takes on each shard."""
        return shard_bytes(info, self.layouts.get(info.name, Replicated()), self.forward.num_shards)


def shard_bytes(info: TensorInfo, layout: Layout, num_shards: int) -> tuple[int, ...]:
    """Return what a tensor takes on each shard."""
    each = info.num_bytes // max(1, math.prod(info.shape))
    return tuple(each * math.prod(local_shape(layout, info.shape, rank)) for rank in range(num_shards))

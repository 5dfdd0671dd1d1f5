"""A placement built stage by stage: name the devices, link the stages, read off the blocks and edges.

The builder knows what a stage of a trained pipeline is (a forward block, a joint or split backward, perhaps a
recomputation) and how gradients flow back along the links, so that a shape is a few lines. It decides nothing
about costs: they are options. `tessel.shapes` is written with it, and custom shapes can be too:

    >>> from tessel.placement_builder import PlacementBuilder
    >>> builder = PlacementBuilder(2, {"backward_span": 2})
    >>> builder.link([builder.stage(1), builder.stage(0)])
    >>> [block.name for block in builder.placement().blocks]
    ['f0', 'f1', 'b1', 'b0']

Checked in tests/tessel/test_shapes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypedDict

from tessel.placement import Block, BlockKind, Choice, Edge, Placement

Spans = int | Sequence[int]
"""One span for all stages, or one per stage in stage order; tensor-parallel blocks are not counted."""


class ShapeOptions(TypedDict, total=False):
    """Costs and variants that every shape takes.

    Attributes:
        forward_span: steps of a forward block, 1 unless given.
        backward_span: steps of a joint backward block, 3 unless given.
        backward_input_span: steps of the input half of a split backward; half of `backward_span`, rounded up.
        backward_weight_span: steps of its weight half; half of `backward_span`, rounded down.
        recompute_span: steps of a recomputation; those of the forward block unless given.
        forward_memory: units a forward block adds on its device, 1 unless given.
        backward_memory: units a backward block adds; it frees what the forward block added unless given.
            Split, the weight half frees the larger part of it.
        recompute_memory: units a recomputation adds and its backward frees, 0 unless given.
        tensor_parallel_span: steps of a tensor-parallel block, 1 unless given.
        infer: leave out backward blocks and memory.
        split_backward: give each stage an input-gradient and a weight-gradient block in place of a joint one.
        choose_backward: give each stage both, as a choice.
        recompute: run a recomputation before each stage's backward.
        lag: steps between a block and the next one on another device; one number, or one per hop in stage
            order (the gradient takes as long on its way back).
    """

    forward_span: Spans
    backward_span: Spans
    backward_input_span: Spans
    backward_weight_span: Spans
    recompute_span: Spans
    forward_memory: Spans
    backward_memory: Spans
    recompute_memory: Spans
    tensor_parallel_span: int
    infer: bool
    split_backward: bool
    choose_backward: bool
    recompute: bool
    lag: Spans


_SpansOption = Literal[
    "forward_span",
    "backward_span",
    "backward_input_span",
    "backward_weight_span",
    "recompute_span",
    "forward_memory",
    "backward_memory",
    "recompute_memory",
    "lag",
]


@dataclass(frozen=True, slots=True)
class Stage:
    """The blocks of one stage, in execution order, and which of them face its neighbours."""

    index: int
    forward: Block
    backward: tuple[Block, ...]
    edges: tuple[Edge, ...]
    gradient_blocks: tuple[str, ...]
    choice: Choice | None = None


@dataclass(slots=True)
class PlacementBuilder:
    """Collects the stages and edges of one shape; stages are numbered in the order they are made."""

    num_devices: int
    options: ShapeOptions
    stages: list[Stage] = field(default_factory=list)
    hops: list[tuple[Stage, Stage]] = field(default_factory=list)
    num_costed: int = 0

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise ValueError(f"a shape on {self.num_devices} devices was asked for; it needs at least 1")
        unknown = sorted(self.options.keys() - ShapeOptions.__annotations__.keys())
        if unknown:
            raise TypeError(
                f"option {unknown[0]!r} is unknown; there are {', '.join(ShapeOptions.__annotations__)}"
            )
        flags = ("infer", "split_backward", "choose_backward")
        variants = [name for name in flags if self.options.get(name, False)]
        if len(variants) > 1:
            raise ValueError(f"options {' and '.join(variants)} exclude each other; give one of them")

    def stage(self, device: int, *, is_kept: bool = True) -> Stage:
        """Add a stage on one device; one that is not kept for the backward has neither that nor memory."""
        cost = self._cost(self.num_costed)
        self.num_costed += 1
        trained = is_kept and not self.options.get("infer", False)
        index = len(self.stages)
        forward = Block(
            name=f"f{index}",
            kind=BlockKind.FORWARD,
            devices=(device,),
            span=cost.forward_span,
            memory=cost.forward_memory if trained else 0,
        )
        stage = (
            self._trained_stage(forward, index, cost)
            if trained
            else Stage(index=index, forward=forward, backward=(), edges=(), gradient_blocks=())
        )
        self.stages.append(stage)
        return stage

    def tensor_parallel(self, *, memory: int = 0, has_backward: bool = True) -> Stage:
        """Add a block on all devices and its joint backward, which frees what the block added."""
        index = len(self.stages)
        span = self.options.get("tensor_parallel_span", 1)
        every = tuple(range(self.num_devices))
        forward = Block(name=f"f{index}", kind=BlockKind.FORWARD, devices=every, span=span, memory=memory)
        backward = Block(name=f"b{index}", kind=BlockKind.BACKWARD, devices=every, span=span, memory=-memory)
        trained = has_backward and not self.options.get("infer", False)
        stage = Stage(
            index=index,
            forward=forward,
            backward=(backward,) if trained else (),
            edges=(Edge(forward.name, backward.name),) if trained else (),
            gradient_blocks=(backward.name,) if trained else (),
        )
        self.stages.append(stage)
        return stage

    def link(self, chain: Sequence[Stage]) -> None:
        """Let each stage of the chain feed the next one, and the gradients flow back."""
        self.hops.extend(pairwise(chain))

    def placement(self) -> Placement:
        """Return the placement: forward blocks in stage order, then backward blocks in reverse."""
        self._check_lengths()
        edges = [edge for stage in self.stages for edge in stage.edges]
        for hop_index, (source, target) in enumerate(self.hops):
            edges.extend(self._hop_edges(hop_index, source, target))
        return Placement(
            devices=self.num_devices,
            blocks=(
                *(stage.forward for stage in self.stages),
                *(block for stage in reversed(self.stages) for block in stage.backward),
            ),
            edges=tuple(edges),
            choices=tuple(stage.choice for stage in self.stages if stage.choice is not None),
        )

    def _trained_stage(self, forward: Block, index: int, cost: _StageCost) -> Stage:
        before = forward
        recomputation: tuple[Block, ...] = ()
        edges: list[Edge] = []
        if self.options.get("recompute", False):
            before = _on_device_of(
                forward, f"r{index}", BlockKind.RECOMPUTE, cost.recompute_span, cost.recompute_memory
            )
            recomputation = (before,)
            edges.append(Edge(forward.name, before.name))
        joint, split = self._backward_options(forward, index, cost)
        options = (joint, split) if self.options.get("choose_backward", False) else (joint or split,)
        for option in options:
            edges.append(Edge(before.name, option[0].name))
            edges.extend(Edge(half.name, other.name) for half, other in pairwise(option))
        names = tuple(tuple(block.name for block in option) for option in options)
        return Stage(
            index=index,
            forward=forward,
            backward=(*recomputation, *(block for option in options for block in option)),
            edges=tuple(edges),
            gradient_blocks=tuple(option[0] for option in names),
            choice=Choice(f"b{index}", names) if len(names) > 1 else None,
        )

    def _backward_options(
        self, forward: Block, index: int, cost: _StageCost
    ) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
        """The joint backward, empty where only the split one is wanted, and the two halves."""
        freed = cost.backward_memory - (cost.recompute_memory if self.options.get("recompute") else 0)
        freed_early = -(-freed // 2)  # the smaller part: the weight half still reads the rest
        name = f"b{index}"
        joint = _on_device_of(forward, name, BlockKind.BACKWARD, cost.backward_span, freed)
        input_half = _on_device_of(
            forward, f"{name}_input", BlockKind.BACKWARD_INPUT, cost.input_span, freed_early
        )
        weight_half = _on_device_of(
            forward, f"{name}_weight", BlockKind.BACKWARD_WEIGHT, cost.weight_span, freed - freed_early
        )
        return () if self.options.get("split_backward", False) else (joint,), (input_half, weight_half)

    def _hop_edges(self, hop_index: int, source: Stage, target: Stage) -> list[Edge]:
        """The edges of one hop; a result that is already on every device of the next block has no lag."""
        lag = self._number("lag", hop_index, 0)
        there, back = source.forward.devices, target.forward.devices
        forward_lag = 0 if set(back) <= set(there) else lag
        backward_lag = 0 if set(there) <= set(back) else lag
        return [
            Edge(source.forward.name, target.forward.name, forward_lag),
            *(
                Edge(later, earlier, backward_lag)
                for later in target.gradient_blocks
                for earlier in source.gradient_blocks
            ),
        ]

    def _cost(self, index: int) -> _StageCost:
        forward_span = self._number("forward_span", index, 1)
        backward_span = self._number("backward_span", index, 3)
        forward_memory = self._number("forward_memory", index, 1)
        return _StageCost(
            forward_span=forward_span,
            backward_span=backward_span,
            input_span=self._number("backward_input_span", index, (backward_span + 1) // 2),
            weight_span=self._number("backward_weight_span", index, backward_span // 2),
            recompute_span=self._number("recompute_span", index, forward_span),
            forward_memory=forward_memory,
            backward_memory=self._number("backward_memory", index, -forward_memory),
            recompute_memory=self._number("recompute_memory", index, 0),
        )

    def _number(self, option: _SpansOption, index: int, default: int) -> int:
        given = self.options.get(option, default)
        if isinstance(given, int):
            return given
        if index >= len(given):
            raise ValueError(
                f"{option} has {len(given)} numbers, which is too few; give one number, or one per stage"
            )
        return given[index]

    def _check_lengths(self) -> None:
        for option, given in self.options.items():
            needed = len(self.hops) if option == "lag" else self.num_costed
            if isinstance(given, Sequence) and len(given) != needed:
                raise ValueError(
                    f"{option} has {len(given)} numbers, but this shape has {needed} places for them"
                )


@dataclass(frozen=True, slots=True)
class _StageCost:
    """Spans and memory of one stage, with the defaults filled in."""

    forward_span: int
    backward_span: int
    input_span: int
    weight_span: int
    recompute_span: int
    forward_memory: int
    backward_memory: int
    recompute_memory: int


def _on_device_of(forward: Block, name: str, kind: BlockKind, span: int, memory: int) -> Block:
    return Block(name=name, kind=kind, devices=forward.devices, span=span, memory=memory)

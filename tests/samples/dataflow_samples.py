"""Graphs and Relax functions that the tests of the partition search share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from tvm import relax

from tuner.graph import DataflowGraph, Node, NodeSet, PatternKind, SubGraph

ANCHOR, BROADCAST, ELEMENTWISE, INJECTIVE, REDUCTION = (
    PatternKind.ANCHOR,
    PatternKind.BROADCAST,
    PatternKind.ELEMENTWISE,
    PatternKind.INJECTIVE,
    PatternKind.REDUCTION,
)

GPT2_FRAGMENT = (
    (6, (), ANCHOR),
    (8, (6,), BROADCAST),
    (9, (8,), INJECTIVE),
    (11, (9,), BROADCAST),
    (15, (9,), BROADCAST),
    (17, (15,), BROADCAST),
    (18, (9, 17), BROADCAST),
    (20, (18,), BROADCAST),
    (21, (20,), ELEMENTWISE),
    (23, (21,), BROADCAST),
    (24, (11, 23), BROADCAST),
)
"""Upstream's test case: (number there, what it reads, kind)."""


def graph_of(
    inputs: Sequence[tuple[int, ...]],
    *,
    kinds: Sequence[PatternKind] | None = None,
    operators: Sequence[str] | None = None,
    external: Iterable[int] | None = None,
) -> DataflowGraph:
    """Return a graph of nodes that read the given ones; the last is external unless said otherwise."""
    leaving = {len(inputs) - 1} if external is None else set(external)
    return DataflowGraph(
        Node(
            index=index,
            operator=operators[index] if operators else "add",
            kind=kinds[index] if kinds else PatternKind.BROADCAST,
            inputs=reads,
            is_external=index in leaving,
        )
        for index, reads in enumerate(inputs)
    )


def gpt2_fragment() -> tuple[DataflowGraph, Callable[[SubGraph], frozenset[int]]]:
    """Return upstream's fragment, and what turns a sub-graph into upstream's numbers."""
    position = {number: index for index, (number, _, _) in enumerate(GPT2_FRAGMENT)}
    graph = graph_of(
        [tuple(position[read] for read in reads) for _, reads, _ in GPT2_FRAGMENT],
        kinds=[kind for _, _, kind in GPT2_FRAGMENT],
    )
    return graph, lambda sub_graph: frozenset(GPT2_FRAGMENT[index][0] for index in sub_graph.inside)


def sub_graph(graph: DataflowGraph, *indices: int) -> SubGraph:
    return SubGraph.of(graph, NodeSet.of(indices))


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 8) -> DataflowGraph:
    """Draw a graph whose nodes read up to three earlier ones; what nobody reads is a result."""
    count = draw(st.integers(1, max_nodes))
    inputs = [()] + [
        tuple(sorted(draw(st.sets(st.integers(0, index - 1), max_size=3)))) for index in range(1, count)
    ]
    kinds = draw(
        st.lists(
            st.sampled_from([ANCHOR, BROADCAST, ELEMENTWISE, INJECTIVE, REDUCTION]),
            min_size=count,
            max_size=count,
        )
    )
    unread = set(range(count)) - {read for reads in inputs for read in reads}
    external = unread | draw(st.sets(st.integers(0, count - 1), max_size=2))
    return graph_of(inputs, kinds=kinds, external=external)


def relax_module(build: Callable[..., Any], **shapes: tuple[int, ...]) -> Any:
    """Return a module whose `main` takes float32 tensors and returns what `build(builder, *inputs)` does."""
    builder = relax.BlockBuilder()
    parameters = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items()]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = build(builder, *parameters)
            fields = result if isinstance(result, tuple) else (result,)
            outputs = [builder.emit_output(field) for field in fields]
        builder.emit_func_output(relax.Tuple(outputs) if isinstance(result, tuple) else outputs[0])
    return builder.get()


def transformer_block(width: int = 16, length: int = 4, heads: int = 2) -> Any:
    """Return a module with one block of a decoder: normalise, attend, add, normalise, widen, narrow, add."""
    depth = width // heads

    def build(builder: Any, x: Any, *weights: Any) -> Any:
        scale, shift, qkv, bias, out, wide, narrow = weights
        emit = builder.emit
        normal = emit(relax.op.nn.layer_norm(x, scale, shift, axes=[-1]))
        joint = emit(relax.op.add(emit(relax.op.matmul(normal, qkv)), bias))
        parts = emit(relax.op.split(joint, 3, axis=1))
        heads_of = [
            emit(
                relax.op.permute_dims(
                    emit(relax.op.reshape(emit(relax.TupleGetItem(parts, index)), (length, heads, depth))),
                    (1, 0, 2),
                )
            )
            for index in range(3)
        ]
        keys = emit(relax.op.permute_dims(heads_of[1], (0, 2, 1)))
        scores = emit(
            relax.op.multiply(emit(relax.op.matmul(heads_of[0], keys)), relax.const(0.35, "float32"))
        )
        weighted = emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), heads_of[2]))
        merged = emit(relax.op.reshape(emit(relax.op.permute_dims(weighted, (1, 0, 2))), (length, width)))
        middle = emit(relax.op.add(x, emit(relax.op.matmul(merged, out))))
        hidden = emit(relax.op.nn.gelu(emit(relax.op.matmul(middle, wide))))
        return emit(relax.op.add(middle, emit(relax.op.matmul(hidden, narrow))))

    return relax_module(
        build,
        x=(length, width),
        scale=(width,),
        shift=(width,),
        qkv=(width, 3 * width),
        bias=(3 * width,),
        out=(width, width),
        wide=(width, 4 * width),
        narrow=(4 * width, width),
    )


def branchy_network(channels: int = 4, extent: int = 8) -> Any:
    """Return a module with one inception-like block: three branches of convolutions, concatenated."""

    def build(builder: Any, x: Any, one: Any, three: Any, five: Any) -> Any:
        emit = builder.emit
        first = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, one))))
        second = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, three, padding=1))))
        third = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, five, padding=2))))
        joined = emit(relax.op.concat([first, second, third], axis=1))
        return emit(relax.op.nn.max_pool2d(joined, pool_size=(2, 2), strides=(2, 2)))

    return relax_module(
        build,
        x=(1, channels, extent, extent),
        one=(channels, channels, 1, 1),
        three=(channels, channels, 3, 3),
        five=(channels, channels, 5, 5),
    )


@dataclass(frozen=True, slots=True)
class GivenSubGraphs:
    """A rule that proposes exactly the given sets of nodes."""

    name: str
    insides: tuple[NodeSet, ...]

    def find_candidates(self, graph: DataflowGraph) -> Iterable[SubGraph]:
        """Yield one sub-graph a set, in the order given."""
        return (SubGraph.of(graph, inside) for inside in self.insides)

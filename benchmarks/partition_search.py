"""How long the partition search takes once prices are known, by size and shape of the graph.

    python -m benchmarks.partition_search [--repeats 3] [--models gpt2 bert net.onnx]

Prices are drawn at random (seed 0) around a discount for fusing, so that candidates compete closely. Shapes:
`chain`, transformer-like `blocks`, and `branches` (eight parallel branches of two, numbered across the
branches, the worst case for covered sets). With `horizontal`, equal anchors of one value may be joined;
with `transitions`, a value that changes backend costs 1 us. Each line gives the median and the extremes of
the time, candidates, states expanded, parts, and whether the answer is proven; candidates are found
beforehand, in the time given. Models of the zoo and ONNX files can be added: their graphs are real, their
prices drawn all the same.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np

from tuner.frontend.loading import load_model
from tuner.graph import DataflowGraph, Node, PatternKind
from tuner.partition.find_partition import DEFAULT_MAX_STATES, find_candidates, find_partition
from tuner.partition.partition_spec import PartitionSpec
from tuner.plan import Figure
from tuner.rules.single import OperatorByKind, OperatorByPredicate
from tuner.rules.styles import horizontal_rule, tvm_native_rule

Layout = list[tuple[tuple[int, ...], PatternKind, str]]

ANCHOR, BROADCAST, ELEMENTWISE, INJECTIVE = (
    PatternKind.ANCHOR,
    PatternKind.BROADCAST,
    PatternKind.ELEMENTWISE,
    PatternKind.INJECTIVE,
)


def chain(num_operators: int) -> Layout:
    """Anchor, bias, activation, over and over."""
    cycle = ((ANCHOR, "matmul"), (BROADCAST, "add"), (ELEMENTWISE, "relu"))
    return [((index - 1,) if index else (), *cycle[index % 3]) for index in range(num_operators)]


def blocks(num_operators: int) -> Layout:
    """Twenty operators a block: three heads side by side, two products, a residual, a product, a residual."""
    layout: Layout = [((), ELEMENTWISE, "relu")]
    while len(layout) + 20 <= num_operators:
        start, first = len(layout) - 1, len(layout)
        for head in range(3):
            layout.append(((start,), ANCHOR, "matmul"))
            layout.append(((first + 3 * head,), BROADCAST, "add"))
            layout.append(((first + 3 * head + 1,), INJECTIVE, "reshape"))
        layout.append(((first + 2, first + 5), ANCHOR, "matmul"))
        layout.append(((first + 9,), BROADCAST, "multiply"))
        layout.append(((first + 10,), ANCHOR, "softmax"))
        layout.append(((first + 11, first + 8), ANCHOR, "matmul"))
        layout.append(((first + 12,), INJECTIVE, "reshape"))
        layout.append(((first + 13,), ANCHOR, "matmul"))
        layout.append(((first + 14,), BROADCAST, "add"))
        layout.append(((first + 15, start), BROADCAST, "add"))
        layout.append(((first + 16,), ANCHOR, "matmul"))
        layout.append(((first + 17,), ELEMENTWISE, "gelu"))
        layout.append(((first + 18, first + 16), BROADCAST, "add"))
    return layout


def branches(num_operators: int) -> Layout:
    """Eight branches of two operators, level by level, and a join, over and over."""
    layout: Layout = [((), ELEMENTWISE, "relu")]
    while len(layout) + 17 <= num_operators:
        start, first = len(layout) - 1, len(layout)
        layout += [((start,), ANCHOR, "matmul") for _ in range(8)]
        layout += [((first + branch,), ELEMENTWISE, "relu") for branch in range(8)]
        layout.append((tuple(range(first + 8, first + 16)), ANCHOR, "pool"))
    return layout


SHAPES: dict[str, Callable[[int], Layout]] = {"chain": chain, "blocks": blocks, "branches": branches}


def graph_of(layout: Layout) -> DataflowGraph:
    return DataflowGraph(
        Node(
            index=index,
            operator=operator,
            kind=kind,
            inputs=tuple(sorted(inputs)),
            is_external=index == len(layout) - 1,
        )
        for index, (inputs, kind, operator) in enumerate(layout)
    )


def specs(*, horizontal: bool) -> list[PartitionSpec]:
    library = OperatorByPredicate("library", lambda node: node.kind is ANCHOR)
    found = [
        PartitionSpec("tvm", tvm_native_rule()),
        PartitionSpec("library", horizontal_rule(library) if horizontal else library),
    ]
    return [*found, PartitionSpec("other", OperatorByKind())]


def measure(
    name: str, graph: DataflowGraph, *, horizontal: bool, transitions: float, arguments: argparse.Namespace
) -> str:
    started = time.perf_counter()
    candidates = find_candidates(graph, specs(horizontal=horizontal)).candidates
    finding_s = time.perf_counter() - started
    rng = np.random.default_rng(0)
    prices = [
        Figure(
            latency_us=float(10 * len(each.sub_graph.inside) ** 0.8 * rng.uniform(0.8, 1.2)), source="given"
        )
        for each in candidates
    ]
    seconds = []
    for _ in range(arguments.repeats):
        started = time.perf_counter()
        partition = find_partition(
            graph,
            candidates,
            prices,
            launch_penalty_us=1.0,
            transition_penalty_us=transitions,
            max_states=arguments.max_states,
        )
        seconds.append(time.perf_counter() - started)
    gap = 100 * (partition.cost_us - partition.lower_bound_us) / partition.cost_us
    name += (" + horizontal" if horizontal else "") + (" + transitions" if transitions else "")
    time_s = f"{statistics.median(seconds):.2f} ({min(seconds):.2f}–{max(seconds):.2f})"
    proven = "yes" if partition.proven else f"no, gap {gap:.2f} %"
    found = f"{len(candidates)} in {finding_s:.2f} s"
    cells = (name, len(graph), found, time_s, partition.states, len(partition.chosen), proven)
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-states", type=int, default=DEFAULT_MAX_STATES)
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 5000])
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    print("| graph | operators | candidates | seconds | states | parts | proven |")
    print("|---|---|---|---|---|---|---|")
    graphs = [
        (shape, graph_of(layout(size))) for shape, layout in SHAPES.items() for size in arguments.sizes
    ] + [
        (name.rpartition("/")[2], DataflowGraph.from_function(load_model(name).module))
        for name in arguments.models
    ]
    for name, graph in graphs:
        for horizontal, transitions in ((False, 0.0), (True, 0.0), (False, 1.0)):
            line = measure(name, graph, horizontal=horizontal, transitions=transitions, arguments=arguments)
            print(line, flush=True)


if __name__ == "__main__":
    main()

"""Graphs of PipeDream: `graph.txt`, a directed acyclic graph of operators, read as the chain of its order.

    node4 -- Embedding(32320, 1024) -- forward_compute_time=0.073, backward_compute_time=6.949, …
        node1 -- node4

Times are milliseconds and sizes bytes, of one micro-batch, whose number of samples the file does not say. The
order is the topological one that takes the lowest number first; `boundary_bytes` behind a node counts every
output that is still needed after it. What a node hands on is taken for what it saves. Input nodes cost
nothing, as in PipeDream's optimizer: their time is the loading of data.
Checked in tests/benchmarks/profile_readers/test_readers.py.

Source: PipeDream (Narayanan et al., SOSP 2019), github.com/msr-fiddle/pipedream, graph/graph.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import networkx as nx

from benchmarks.profile_readers.reading import Reading
from tessel.errors import ScheduleError
from tessel.names import MAX_NAME, name_of_path
from tessel.profiles.figures import make_cost, read_number, refusal
from tessel.profiles.profile import MAX_LAYERS, CostTable, Layer, Profile, StageCosts

_NEEDED = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_FIGURES = {name: re.compile(rf"(?<!\w){name}=(\[[^\]]*\]|[^,]*)(?:, |$)") for name in _NEEDED}


@dataclass(frozen=True, slots=True)
class _Node:
    """An operator: its description, its figures, and the row it stands in."""

    title: str
    figures: Mapping[str, float]
    place: str


def read(path: Path, text: bytes) -> Reading:
    """Read a graph.

    Raises:
        DocumentError: it is none; the message names the row and what to do.
    """
    nodes: dict[str, _Node] = {}
    graph: nx.DiGraph[str] = nx.DiGraph()
    edges: list[tuple[str, str, str]] = []
    for number, line in enumerate(text.decode().splitlines(), 1):
        place = f"row {number}"
        if not line.strip():
            continue
        parts = line.strip().split(" -- ")
        if line.startswith("\t"):
            if len(parts) != 2:
                raise refusal(path, place, f"{line.strip()!r} is no edge", "write SOURCE -- TARGET")
            edges.append((parts[0], parts[1], place))
            continue
        if len(parts) < 3:
            raise refusal(path, place, f"{line.strip()!r} is no node", "write NAME -- OPERATOR -- FIGURES")
        if parts[0] in nodes:
            raise refusal(path, place, f"{parts[0]} stands already in {nodes[parts[0]].place}", "keep one")
        nodes[parts[0]] = _Node(parts[1], _figures(parts[2], path, place), place)
        graph.add_node(parts[0])
    for source, target, place in edges:
        unknown = next((each for each in (source, target) if each not in nodes), None)
        if unknown is not None:
            raise refusal(path, place, f"the node {unknown!r} does not exist", "add it, or remove the edge")
        graph.add_edge(source, target)
    if not nodes:
        raise refusal(path, "", "it has no nodes", "check that it is the right file")
    if len(nodes) > MAX_LAYERS:
        raise refusal(path, "", f"it has {len(nodes)} nodes", f"{MAX_LAYERS} are the most")
    return Reading(_profile(nodes, graph, path), says_micro_batch=False)


def _figures(text: str, path: Path, place: str) -> dict[str, float]:
    """Return the figures of a node; a list of sizes counts as their sum."""
    figures = {}
    for name, pattern in _FIGURES.items():
        found = pattern.search(text)
        if found is None:
            raise refusal(path, place, f"{name} is missing", "write it as the profiler does")
        values = found[1].strip("[]").split(";")
        figures[name] = sum(read_number(value, path, f"{place}, {name}") for value in values)
    return figures


def _profile(nodes: Mapping[str, _Node], graph: nx.DiGraph[str], path: Path) -> Profile:
    try:
        order = list(nx.lexicographical_topological_sort(graph, key=_number))
    except nx.NetworkXUnfeasible as error:
        raise refusal(
            path, "", "the nodes wait for each other in a cycle", "remove one of its edges"
        ) from error
    boundaries = _boundaries(nodes, graph, order)
    costs = tuple(
        _cost(nodes[name], boundary, path) for name, boundary in zip(order, boundaries, strict=True)
    )
    try:
        return Profile(
            name=name_of_path(path.absolute().parent.name if path.name == "graph.txt" else path.stem),
            layers=tuple(Layer(f"{name} {nodes[name].title}"[:MAX_NAME]) for name in order),
            tables=(CostTable(micro_batch=1, tensor_parallel=1, costs=costs),),
            notes=(
                "the graph is read as a chain; a cut carries every output that is needed behind it",
                "what a node saves for its backward is taken to be its output",
            ),
        )
    except ScheduleError as error:
        raise refusal(path, "", error, "rename it") from error


def _number(name: str) -> tuple[int, str]:
    digits = re.sub(r"[^0-9]", "", name)[:9]
    return (int(digits) if digits else 0, name)


def _output_bytes(node: _Node) -> float:
    return 0.0 if node.title.startswith("Input") else node.figures["activation_size"]


def _boundaries(nodes: Mapping[str, _Node], graph: nx.DiGraph[str], order: list[str]) -> list[float]:
    """Return the bytes alive across the cut behind each node: outputs that a later node reads."""
    position = {name: index for index, name in enumerate(order)}
    last_use = {
        name: max((position[each] for each in graph.successors(name)), default=position[name])
        for name in order
    }
    ending: dict[int, float] = {}
    alive, found = 0.0, []
    for index, name in enumerate(order):
        size = _output_bytes(nodes[name])
        alive += size
        ending[last_use[name]] = ending.get(last_use[name], 0.0) + size
        alive -= ending.get(index, 0.0)
        found.append(max(0.0, alive))
    return found


def _cost(node: _Node, boundary: float, path: Path) -> StageCosts:
    is_input = node.title.startswith("Input")
    figures = node.figures
    return make_cost(
        {
            "forward_us": 0.0 if is_input else figures["forward_compute_time"] * 1e3,
            "backward_us": 0.0 if is_input else figures["backward_compute_time"] * 1e3,
            "weight_bytes": figures["parameter_size"],
            "saved_bytes": _output_bytes(node),
            "boundary_bytes": boundary,
        },
        path,
        node.place,
    )

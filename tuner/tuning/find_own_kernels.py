"""Find the built-in kernels that a model has, before anything is priced or measured.

They are those of a cover that leaves least work to others (`find_own_kernels`). A kernel finds its weights in
the caches or in memory, as it would among the weights of its network (`among_weights`): one of ResNet-50's is
1.09 times as fast as its rule with weights in the cache, and slower in the network. Checked in
tests/tuner/tuning/test_find_own_kernels.py.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.backends.cpu.tuned.families import OwnKernel
from tuner.backends.cpu.tuned.tuned_backend import TunedKernels
from tuner.backends.protocol import Backend
from tuner.backends.tvm.native import TvmNative
from tuner.graph import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.graph.relax_types import PARTITION_ATTRIBUTE
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.outline import extract_module
from tuner.lowering.workload_of import operator_flops
from tuner.partition.candidate import CandidatePartition
from tuner.partition.find_partition import find_candidates, find_partition
from tuner.plan import Figure
from tuner.targets.target import Target

_FOREIGN_US = 1.5
"""What a part of another backend costs in the cover that is sought, where one of ours costs 1."""

_LEFT_US = 1e4
"""What it costs besides to leave all operations to others that kernels of ours could do, so that another part
pays for one operator of some thousand equal ones."""


_CACHED_BYTES = 1 << 18
"""Weights of a network that any cache holds."""

_MOST_BYTES = 1 << 27
"""Weights of a network that no cache holds."""


@dataclass(frozen=True, slots=True)
class WeightedOwnKernel:
    """A kernel of a model.

    Attributes:
        kernel: with what it does to its results where it was first met.
        count: how often the model runs it.
        weight_bytes: what a kernel with weights reads of all kernels' before it reads its own again, as a
            power of two, so that networks of about one size share trials; 0 where caches hold them all.
    """

    kernel: OwnKernel
    count: int
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class OwnKernels:
    """The kernels of a model that our own backends run.

    Attributes:
        kernels: each once, those with the most operations first.
        covered: nodes of the graph that they compute.
        cover: the parts of the whole graph that they were found in, those of other backends included.
    """

    kernels: tuple[WeightedOwnKernel, ...]
    covered: NodeSet
    cover: tuple[CandidatePartition, ...]


def find_own_kernels(graph: DataflowGraph, backends: Iterable[Backend], target: Target) -> OwnKernels:
    """Return the kernels of a cover of a graph that leaves least to others.

    As little work of products and convolutions as can be is left to kernels that are not ours, which a part
    of ours may hold too: channels-last parts take what lies between convolutions. Among such covers the one
    with the fewest parts counts, as few as can be of other backends.

    Args:
        graph: of a model's function.
        backends: those that take part; where all of them write kernels of our own, `tvm` does the rest.
        target: what is built for.

    Raises:
        UnpriceableError: nobody can run an operator; names it.
    """
    backends = tuple(backends)
    own = {each.name: each for each in backends if isinstance(each, TunedKernels)}
    if not own:
        return OwnKernels((), NodeSet(), ())
    others = [each for each in backends if each.name not in own] or [TvmNative()]
    found = find_candidates(graph, gather_specs((*own.values(), *others), target))
    partition = find_partition(
        graph, found.candidates, _prices(graph, found.candidates, own), launch_penalty_us=0.0
    )
    covered = NodeSet()
    kernels: dict[str, WeightedOwnKernel] = {}
    for part in partition.chosen:
        if part.backend not in own:
            continue
        covered |= part.sub_graph.inside
        module = extract_module(graph, part.sub_graph, part.backend)
        names = [
            variable.name_hint
            for variable, function in module.functions_items()
            if function.attrs and PARTITION_ATTRIBUTE in function.attrs
        ]
        for kernel in own[part.backend].kernels_of(module, names, target):
            known = kernels.get(kernel.name)
            kernels[kernel.name] = WeightedOwnKernel(
                kernel if known is None else known.kernel, 1 if known is None else known.count + 1
            )
    ranked = sorted(kernels.values(), key=lambda each: -each.count * each.kernel.operations)
    return OwnKernels(among_weights(ranked), covered, partition.chosen)


def among_weights(kernels: Sequence[WeightedOwnKernel]) -> tuple[WeightedOwnKernel, ...]:
    """Return the kernels of one network, each with the weights that it is measured among."""
    total = sum(each.count * each.kernel.packed_bytes for each in kernels)
    weight_bytes = 0 if total < _CACHED_BYTES else min(_MOST_BYTES, 1 << round(math.log2(total)))
    return tuple(
        replace(each, weight_bytes=weight_bytes if each.kernel.packed_bytes else 0) for each in kernels
    )


def _prices(
    graph: DataflowGraph, candidates: Sequence[CandidatePartition], own: Mapping[str, TunedKernels]
) -> list[Figure]:
    """Return what each candidate costs in the cover that is sought."""
    by_candidate = [
        NodeSet.of(
            index
            for index in each.sub_graph.inside
            if each.backend in own and graph.nodes[index].operator in own[each.backend].computes
        )
        for each in candidates
    ]
    flops = operator_flops(graph)
    ours = functools.reduce(operator.or_, by_candidate, NodeSet())
    price = _LEFT_US / max(sum(flops[index] for index in ours), 1)
    return [
        Figure(
            latency_us=(1.0 if each.backend in own else _FOREIGN_US)
            + price * sum(flops[index] for index in (each.sub_graph.inside & ours) - computed),
            source="derived",
        )
        for each, computed in zip(candidates, by_candidate, strict=True)
    ]

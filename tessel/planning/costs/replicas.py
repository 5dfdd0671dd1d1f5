"""Devices that hold the same part of a model, and the links over which they exchange it.

Routed experts have replicas of their own: devices that hold the same other weights hold different experts, in
turn. Checked in tests/tessel/planning/costs/test_experts.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from tessel.planning.cluster import Cluster, Link
from tessel.planning.layout import Layout


def collective_link(
    layout: Layout, cluster: Cluster, positions: Sequence[int], *, experts: bool = False
) -> Link:
    """Return the link over which the devices at some positions of the pipeline sum their gradients.

    A group with several members in each node has a ring through each of them, so that their links to other
    nodes carry the sum together; it is no faster than the link within a node. The same experts are on every
    `expert_parallel`-th of the devices that hold the same other weights.
    """
    # A gradient is summed over the devices with the same part of each layer.
    stride = max(map(layout.tensor_degree_at, positions))
    stride *= layout.expert_parallel if experts else 1
    slots = tuple(layout.slots_at(each) for each in positions)
    return _link_of_slots(cluster, layout.device_order, stride, slots)


# Layouts of the same degrees ask for it at every stage.
@lru_cache(maxsize=4096)
def _link_of_slots(cluster: Cluster, order: tuple[int, ...], stride: int, slots: tuple[range, ...]) -> Link:
    if cluster.intra_node is None or not cluster.devices_per_node:
        return cluster.collective
    every = [order[slot] if order else slot for each in slots for slot in each]
    if is_one_node(every, cluster):
        return cluster.intra_node
    nodes = Counter(device // cluster.devices_per_node for device in every[::stride])
    bytes_per_s = min(cluster.collective.bytes_per_s * min(nodes.values()), cluster.intra_node.bytes_per_s)
    return Link(bytes_per_s=bytes_per_s, latency_us=cluster.collective.latency_us)


def copies_of(layout: Layout) -> int:
    """Return how often one pipeline holds the model: twice in an `xshape`."""
    return 2 if layout.placement == "xshape" else 1


def replicas_of(layout: Layout, *, experts: bool = False) -> int:
    """Return how many devices hold the same part of the model, or the same of its routed experts."""
    return (layout.expert_replicas if experts else layout.weight_replicas) * copies_of(layout)


def replica_positions(position: int, *, pipeline: int, copies: int) -> tuple[int, ...]:
    """Return the positions of a pipeline that hold the same layers, a given one of them.

    With two copies in opposite directions those are two, but for the middle one of an odd number.
    """
    return (position,) if copies == 1 else tuple(sorted({position, pipeline - 1 - position}))


class Ring(NamedTuple):
    """What replicas of weights exchange over: the link, and on how many devices they are."""

    link: Link
    devices: int


class Rings(NamedTuple):
    """Rings of a stage's replicas: of its routed experts, and of all other weights."""

    dense: Ring
    experts: Ring

    def scatter_us(self, num_bytes: float, expert_bytes: float) -> float:
        """Return how long a reduce-scatter or an all-gather takes, given all bytes and those of experts.

        Experts that are on the same devices as all else are exchanged with it.
        """
        dense, experts = self
        if dense == experts:
            return dense.link.scatter_us(num_bytes, dense.devices)
        us = dense.link.scatter_us(num_bytes - expert_bytes, dense.devices)
        return us + experts.link.scatter_us(expert_bytes, experts.devices)


def rings_of(layout: Layout, cluster: Cluster, stage: int) -> Rings:
    """Return over what the replicas of a stage exchange."""
    position = layout.device_of(stage)
    positions = replica_positions(position, pipeline=layout.pipeline, copies=copies_of(layout))
    dense = collective_link(layout, cluster, positions)
    experts = dense
    if layout.expert_parallel > 1:
        experts = collective_link(layout, cluster, positions, experts=True)
    return Rings(
        Ring(dense, layout.weight_replicas * len(positions)),
        Ring(experts, layout.expert_replicas * len(positions)),
    )


def is_one_node(devices: Sequence[int], cluster: Cluster) -> bool:
    """Whether devices share a node, where nodes have links of their own."""
    if not cluster.devices_per_node or cluster.intra_node is None:
        return False
    return len({device // cluster.devices_per_node for device in devices}) == 1

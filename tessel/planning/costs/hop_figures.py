"""What hops between stages take: beside the blocks, or, where the runtime's block, as a part of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tessel.errors import ScheduleError
from tessel.planning.cluster import Cluster, Link
from tessel.planning.costs.degree_sums import Side, reshard_us
from tessel.planning.costs.replicas import is_one_node
from tessel.planning.costs.stage_costs import FloatArray, LayerSums
from tessel.planning.costs.stage_runs import StageRuns
from tessel.planning.layout import Layout
from tessel.planning.runtime import Runtime


def hop_link(layout: Layout, cluster: Cluster, source: int, target: int) -> Link:
    """Return the link between two positions of the pipeline: the slower one if any replica leaves a node."""
    if cluster.intra_node is None:
        return cluster.hop
    return _hop_link_of_slots(cluster, layout.device_order, layout.slots_at(source), layout.slots_at(target))


# Layouts of the same degrees ask for it at every stage.
@lru_cache(maxsize=4096)
def _hop_link_of_slots(cluster: Cluster, order: tuple[int, ...], source: range, target: range) -> Link:
    assert cluster.intra_node is not None, "nodes have links of their own"
    ends = [tuple(order[slot] if order else slot for slot in slots) for slots in (source, target)]
    most = max(map(len, ends))  # of unequal degrees, a device of the smaller has several opposite
    pairs = zip(*([each[slot * len(each) // most] for slot in range(most)] for each in ends), strict=True)
    return cluster.intra_node if all(is_one_node(pair, cluster) for pair in pairs) else cluster.hop


@dataclass(frozen=True, slots=True, eq=False)
class Hops:
    """Microseconds that hops take beside the blocks, and of the blocks at their ends, by stage."""

    lag_us: FloatArray
    forward_us: FloatArray
    backward_us: FloatArray


def hops_of(sums: LayerSums, layout: Layout, cluster: Cluster, runtime: Runtime, run: StageRuns) -> Hops:
    """Return what the hops of each stage's results and gradients take.

    Raises:
        ScheduleError: stages have degrees of their own, and the runtime's hops block.
    """
    num_stages, groups = len(layout.cuts), run.groups
    found = Hops(np.zeros(len(groups)), np.zeros(len(groups)), np.zeros(len(groups)))
    for stage, later in enumerate(run.next_stages):
        if not later:
            continue
        (following,) = later
        pair = _hop_ends_of(groups[stage], groups[following])
        if pair is None:
            continue
        last = layout.cuts[stage % num_stages][1]
        num_bytes = float(sums.boundary[last])
        link = hop_link(layout, cluster, *pair)
        degrees = [layout.tensor_degree_at(position) for position in pair]
        if degrees[0] != degrees[1]:
            if runtime.has_blocking_hops:
                raise ScheduleError(
                    f"stages have tensor-parallel degrees {layout.named_tensor_degrees}, and pipelines of "
                    f"{runtime.name} have one; give one degree, or another runtime"
                )
            source, target = map(Side, degrees, (num_bytes, float(sums.taken[last + 1])))
            node = cluster.intra_node or link
            found.lag_us[stage] = max(
                reshard_us(source, target, link, node), reshard_us(target, source, link, node)
            )
            continue
        send_us, receive_us = hop_ends(num_bytes, layout.tensor_parallel, link, cluster, runtime)
        if not runtime.has_blocking_hops:
            found.lag_us[stage] = receive_us
            continue
        found.forward_us[stage] += send_us
        found.forward_us[following] += receive_us
        found.backward_us[following] += send_us
        found.backward_us[stage] += receive_us
    return found


def _hop_ends_of(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the devices at both ends of a hop, None where there is none.

    What a divided stage takes, and the gradient of what it makes, goes to all of its devices: the farthest
    counts. What it makes is whole on each of them, but one lag holds for both directions.
    """
    if source == target:
        return None
    if len(source) > len(target):
        return max(source, key=lambda device: abs(device - target[0])), target[0]
    return source[0], max(target, key=lambda device: abs(device - source[0]))


def hop_ends(
    num_bytes: float, tensor_parallel: int, link: Link, cluster: Cluster, runtime: Runtime
) -> tuple[float, float]:
    """Return what a blocking sender of so many bytes waits for, and what the receiver does."""
    parts = tensor_parallel if runtime.splits_hops else 1
    part = num_bytes / parts
    gathered_us = (parts - 1) * (cluster.intra_node or link).transfer_us(part)
    transfer_us = link.transfer_us(part)
    send_us = runtime.hop_overhead_us + (transfer_us if part > runtime.buffered_bytes else 0.0)
    return send_us, runtime.hop_overhead_us + transfer_us + gathered_us

"""A layout from measured layers: what the profile says of them, and what the planner makes of it."""

from __future__ import annotations

import msgspec
import pytest

from tessel.planning.cluster import Link
from tessel.search import SearchBudget
from tessel.tuned_model.layout_choice import ChosenLayout, LayoutRequest, choose_layout, profile_of_layers
from tests.samples.measured_layers import MIB, divided, heavy_head, layer
from tuner.plan import LayersPlan

LINK = Link(bytes_per_s=10e9, latency_us=5.0)


def chosen(layers: LayersPlan, *, memory: int | None = None, replicates: bool = False) -> ChosenLayout:
    request = LayoutRequest(
        devices=4,
        micro_batches=16,
        link=LINK,
        memory_limit_bytes=None if memory is None else memory * MIB,
        replicates=replicates,
    )
    return choose_layout(layers, request, budget=SearchBudget(work_limit=0.5))


def test_layers_and_shards_become_a_profile_with_halves_and_updates() -> None:
    profile = profile_of_layers(heavy_head(), "adam")
    first, block = profile.tables[0].costs[:2]
    # The inputs of the first layer need no gradient: all of its backward is the weight half.
    assert (first.backward_input_us, first.backward_weight_us) == (0.0, first.backward_us)
    assert first.is_splittable
    # Adam moves two moments in and out beside weight, gradient and weight: 7 tensors, not 3.
    assert block.update_us == pytest.approx(1600 * 28 / 16 * 7 / 3)
    (table,) = profile.shards
    assert table.last.weight_bytes < block.weight_bytes * 2
    assert profile.layers[0].tie == profile.layers[-1].tie != ""


def test_a_heavy_head_is_divided_and_no_row_is_faster() -> None:
    found = chosen(heavy_head())
    assert found.layout.placement == "mshape"
    steps = {row.name: row.step_ms for row in found.rows if row.step_ms is not None}
    assert found.rows[0].name == "plan"
    assert steps["plan"] == min(steps.values())
    assert steps["plan"] <= 0.75 * steps["1f1b"]
    assert {"gpipe", "1f1b", "zb-h1", "zb-v", "mshape-1f1b"} <= steps.keys()
    assert found.lower_bound_us <= 1e3 * steps["plan"] * (1 + 1e-9)


def test_without_shards_a_chain_is_taken() -> None:
    whole = msgspec.structs.replace(heavy_head(), shards={})
    assert chosen(whole).layout.placement != "mshape"


def test_replicas_are_taken_where_weights_fit_and_not_where_they_do_not() -> None:
    # Few weights are soon summed, and replicas have no warm-up.
    free = chosen(heavy_head(table_mib=15, block_mib=3), replicates=True)
    assert free.layout.data_parallel > 1
    # All weights with their gradients are 748 MiB: half of that cannot hold a whole copy.
    tight = chosen(heavy_head(), memory=400, replicates=True)
    assert tight.layout.data_parallel == 1
    rows = {row.name: row for row in tight.rows}
    assert rows["data-parallel"].step_ms is None
    assert rows["data-parallel"].reason
    assert rows["plan"].peak_memory_bytes is not None
    assert rows["plan"].peak_memory_bytes <= 400 * MIB


def test_layers_are_divided_where_one_block_is_as_much_work_as_all_others() -> None:
    """No cut divides it, and no head is divided."""
    made = heavy_head()
    layers = (*made.layers[:4], layer(4, 20.0, 28), *made.layers[5:])
    chain = msgspec.structs.replace(made, layers=layers, shards={})
    before = chosen(chain)
    assert before.layout.tensor_parallel == 1
    split = {count: tuple(divided(each, count) for each in layers) for count in (2, 4)}
    found = chosen(msgspec.structs.replace(chain, tensor_parallel=split))
    assert found.layout.tensor_parallel > 1
    assert found.rows[0].step_ms is not None
    assert before.rows[0].step_ms is not None
    assert found.rows[0].step_ms < 0.9 * before.rows[0].step_ms

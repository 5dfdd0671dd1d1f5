"""Measured stages and a table of timings with the same costs give the same blocks, memory and step."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from tuned_model import figure, tuned_model

from tessel.handwritten.gpipe import GPIPE
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.costs.stage_figures import StageFigures, stage_figures
from tessel.planning.costs.training_step import end_of_step, place_blocks
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.profiles.profile import Profile
from tessel.profiles.tuned_plan import profile_of_stages
from tessel.tuned_model.model_figures import figures_of_model
from tessel.tuned_model.replicas import replicated
from tuner.plan import ModelPlan, TensorInfo, TiedParameter

LINK = Link(bytes_per_s=1e8, latency_us=7.0)
UPDATE_US_A_BYTE = 0.001
STEP_US = 0.5


@dataclass
class Stages:
    """Stages as they are measured, what recomputes, and the copies that they have."""

    tuned: ModelPlan
    recompute: tuple[bool, ...]
    copies: int
    optimizer: str
    memory: int | None
    sharding: str = "none"

    def as_measured(self) -> StageFigures:
        stages = tuple(
            msgspec.structs.replace(stage, recomputes=again)
            for stage, again in zip(self.tuned.stages, self.recompute, strict=True)
        )
        tuned = msgspec.structs.replace(self.tuned, stages=stages)
        return figures_of_model(
            replicated(tuned, self.copies, is_mirrored=True),
            optimizer=self.optimizer,
            memory_limit_bytes=self.memory,
            link=LINK,
            update_us_a_byte=UPDATE_US_A_BYTE,
            sharding=self.sharding,
        )

    def as_table(self) -> StageFigures:
        count = len(self.tuned.stages)
        layout = Layout(
            data_parallel=1,
            pipeline=count,
            micro_batch=1,
            micro_batches=2,
            placement="xshape" if self.copies == 2 else "vshape",
            cuts=tuple((layer, layer) for layer in range(count)),
            recompute=self.recompute,
            split_backward=True,
        )
        cluster = Cluster(devices=count, hop=LINK, collective=LINK, memory_bytes=self.memory)
        return stage_figures(
            self.profile(),
            layout,
            Job(cluster=cluster, optimizer=OPTIMIZERS[self.optimizer], sharding=self.sharding),
        )

    def profile(self) -> Profile:
        profile = profile_of_stages(
            self.tuned.stages, self.tuned.tied, name="model", device="", micro_batch=1
        )
        (table,) = profile.tables
        costs = tuple(
            msgspec.structs.replace(cost, update_us=UPDATE_US_A_BYTE * cost.weight_bytes)
            for cost in table.costs
        )
        return msgspec.structs.replace(profile, tables=(msgspec.structs.replace(table, costs=costs),))


@st.composite
def stages(draw: st.DrawFn) -> Stages:
    count = draw(st.integers(2, 4))
    times = st.integers(10, 400).map(float)
    tuned = tuned_model([(draw(times), draw(times), draw(times), draw(times)) for _ in range(count)])
    sizes = st.integers(0, 5000)
    found = []
    received = 0
    for number, stage in enumerate(tuned.stages):
        boundary = draw(sizes) if number < count - 1 else 0
        joint = stage.backward.latency_us if stage.backward is not None else 0.0
        found.append(
            msgspec.structs.replace(
                stage,
                inputs=(TensorInfo(name="x", shape=(received,), dtype="int8", num_bytes=received),),
                weight_bytes=draw(sizes),
                saved_bytes=received + draw(sizes),
                saved_for_weight_bytes=draw(sizes),
                boundary_bytes=boundary,
                # Splitting costs something, or nothing.
                backward_weight=figure(joint) if number and draw(st.booleans()) else stage.backward_weight,
            )
        )
        received = boundary
    is_tied = draw(st.booleans())
    shared = min(found[0].weight_bytes, found[-1].weight_bytes)
    tied = ((TiedParameter("table", 0), TiedParameter("table", count - 1)),)
    tuned = msgspec.structs.replace(
        tuned,
        stages=tuple(found),
        tied=tied if is_tied else (),
        tied_bytes=(shared,) if is_tied else (),
        hop_latency_us=tuple(LINK.transfer_us(stage.boundary_bytes) for stage in found[:-1]),
    )
    return Stages(
        tuned=tuned,
        recompute=tuple(draw(st.booleans()) for _ in found) if draw(st.booleans()) else (False,) * count,
        copies=1 if is_tied else draw(st.sampled_from((1, 2))),
        optimizer=draw(st.sampled_from(("sgd", "momentum", "adam"))),
        memory=draw(st.sampled_from((None, 100_000))),
        sharding=draw(st.sampled_from(("none", "optimizer"))),
    )


@settings(max_examples=60)
@given(stages())
def test_both_give_the_same_placement_memory_and_step(case: Stages) -> None:
    measured, table = case.as_measured(), case.as_table()
    placement = place_blocks(table, STEP_US)
    assert place_blocks(measured, STEP_US) == placement
    assert measured.static_bytes == table.static_bytes
    assert measured.headroom == table.headroom
    schedule = GPIPE.build(placement, micro_batches=3)
    one, other = (end_of_step(each, schedule, step_us=STEP_US) for each in (measured, table))
    assert one.step_us == pytest.approx(other.step_us)
    assert one.memory_bytes == other.memory_bytes
    assert one.synchronisation_us == pytest.approx(other.synchronisation_us)


def test_the_device_with_both_copies_of_a_stage_exchanges_nothing() -> None:
    """The middle one of three, in opposite directions: it sums the gradients of both where they are."""
    tuned = tuned_model([(10.0, 15.0, 10.0, 5.0)] * 3)
    weights = tuple(msgspec.structs.replace(stage, weight_bytes=1000) for stage in tuned.stages)
    case = Stages(
        tuned=msgspec.structs.replace(tuned, stages=weights),
        recompute=(False,) * 3,
        copies=2,
        optimizer="sgd",
        memory=None,
    )
    for figures in (case.as_measured(), case.as_table()):
        exchanged = {stage for each in figures.synchronisations for stage in each.stages}
        assert exchanged == {0, 2, 3, 5}

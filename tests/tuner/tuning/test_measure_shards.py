"""Shards of GPT-2 tiny's head on this machine: measured once each, and equal to the uncut head in torch."""

import numpy as np
import pytest
from relax_in_torch import run_in_torch

from tuner.errors import TunerError
from tuner.frontend import load_model
from tuner.shards import shard_stage, vocabulary_layouts
from tuner.stages import build_stages, cut_between, draw_tensors, layers_of
from tuner.tuning.measure_shards import Link, ShardMeasurer
from tuner.tuning.session import SessionSettings, start_session

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('records')}/records.db"
    settings = SessionSettings(backend_names=("tvm", "blas"), num_threads=1)
    with start_session("cpu", settings, records_url=url) as session:
        yield session


@pytest.fixture(scope="module")
def model():
    return load_model("gpt2:tiny", training=True)


@pytest.fixture(scope="module")
def head(model):
    layers = layers_of(model)
    stages = build_stages(model, cut_between(layers, (1, len(layers) - 1)))
    return stages[-1], shard_stage(stages[-1], vocabulary_layouts((stages[0], stages[-1]), 2), 2)


def test_a_ring_all_reduce_takes_two_rounds_of_a_share_each():
    link = Link(bytes_per_us=1000.0, latency_us=5.0)
    assert link.all_reduce_us(4000, 4) == pytest.approx(6 * (5 + 1))
    with pytest.raises(ValueError, match="give a bandwidth"):
        Link(bytes_per_us=0.0, latency_us=1.0)


def test_distinct_segments_are_measured_once_and_equal_the_uncut_head(session, model, head):
    stage, sharded = head
    measurer = ShardMeasurer(session, 1.0, Link(bytes_per_us=1000.0, latency_us=10.0))
    figures = measurer.price(sharded.forward, "head.forward")
    assert len(figures.segments) == len(sharded.forward.segments)
    # 512 words are even over 2 shards, so both run the same programs.
    assert len(measurer.partitioned) == len(sharded.forward.segments)
    assert {figure.source for figure in figures.segments} == {"measured"}
    assert {figure.source for figure in figures.collectives} == {"given"}
    assert figures.total.source == "derived"
    parts = (*figures.segments, *figures.collectives)
    assert figures.total.latency_us == pytest.approx(sum(figure.latency_us for figure in parts))
    made = session.measurer.new_measurements
    again = measurer.price(sharded.forward, "head.forward")
    assert again == figures
    assert session.measurer.new_measurements == made
    rng = np.random.default_rng(0)
    tensors = draw_tensors(model, rng=rng)
    inputs = [
        tensors[info.name] if info.name in tensors else rng.standard_normal(info.shape).astype(info.dtype)
        for info in stage.forward.inputs
    ]
    expected = run_in_torch(stage.forward.module, inputs)
    found = measurer.run_as_whole(sharded.forward, inputs)
    for info, value, reference in zip(stage.forward.outputs, found, expected, strict=True):
        np.testing.assert_allclose(value, reference, rtol=1e-4, atol=1e-5, err_msg=info.name)


def test_what_was_not_priced_is_not_run(session, head):
    _, sharded = head
    measurer = ShardMeasurer(session, 1.0, Link(bytes_per_us=1.0, latency_us=0.0))
    arrays = [np.zeros(info.shape, info.dtype) for info in sharded.forward.inputs]
    with pytest.raises(TunerError, match="was not priced"):
        measurer.run_as_whole(sharded.forward, arrays)

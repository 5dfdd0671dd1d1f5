"""Memory of published runs of Llama-3, from tables written by hand: shapes, and bytes saved by definition.

Sizes of the models are those of their publication (Grattafiori et al., The Llama 3 Herd of Models, 2024,
table 3). A token saves of a layer in 16 bits what its backward reads, with flash attention and sequence
parallelism: both norms' inputs and outputs, queries, keys, values, the output of attention, and gate, up and
their product. The head holds logits and their gradient while it runs. Nothing is fitted to the runs.

Source of the measured peaks: MooreThreads/SimuMax, release results of its B200 runs, Apache-2.0
(`real_alloc_gib`, of layers 12 and 4 alone). That a step of 405B runs on 512 H100 with these degrees:
mlcommons/training_results_v5.0, Apache-2.0.
"""

from __future__ import annotations

import itertools
import statistics
from typing import NamedTuple

import pytest

from tessel.handwritten.interleaved_1f1b import INTERLEAVED_1F1B
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.costs.training_step import build_step, estimate_step
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts

GIB = 2**30
VOCABULARY = 128_256
LINK = Link(bytes_per_s=5e10)


class Model(NamedTuple):
    hidden: int
    feed_forward: int
    key_values: int = 1024

    @property
    def layer_parameters(self) -> int:
        return self.hidden * (2 * self.hidden + 2 * self.key_values + 3 * self.feed_forward + 2)

    @property
    def saved_bytes_a_token(self) -> int:
        return 12 * self.hidden + 4 * self.key_values + 6 * self.feed_forward


MODELS = {"70B": Model(8192, 28672), "405B": Model(16384, 53248)}


def table(model: Model, num_layers: int, tokens: int, *, tensor: int, context: int) -> Profile:
    own_tokens = tokens // context // tensor
    times = {"forward_us": 1000.0, "backward_us": 2000.0}
    layer = StageCosts(
        weight_bytes=2 * model.layer_parameters // tensor,
        saved_bytes=model.saved_bytes_a_token * own_tokens,
        boundary_bytes=2 * model.hidden * own_tokens,
        **times,
    )
    vocabulary = 2 * VOCABULARY * model.hidden // tensor
    embedding = StageCosts(weight_bytes=vocabulary, boundary_bytes=layer.boundary_bytes, **times)
    head = StageCosts(weight_bytes=vocabulary, peak_bytes=4 * VOCABULARY * own_tokens, **times)
    return Profile(
        name="llama",
        layers=tuple(Layer(f"l{index}") for index in range(num_layers + 2)),
        tables=(
            CostTable(
                micro_batch=1,
                tensor_parallel=tensor,
                context_parallel=context,
                costs=(embedding, *[layer] * num_layers, head),
            ),
        ),
    )


class Run(NamedTuple):
    model: str
    layers: int
    tensor: int
    pipeline: int
    data: int
    context: int
    tokens: int
    gib: float


RUNS = (
    Run("70B", 12, 1, 2, 4, 1, 4096, 66.55),
    Run("70B", 12, 2, 1, 4, 1, 4096, 60.68),
    Run("70B", 12, 4, 1, 2, 1, 4096, 39.07),
    Run("70B", 12, 8, 1, 1, 1, 4096, 28.29),
    Run("70B", 12, 2, 1, 1, 4, 32768, 68.43),
    Run("70B", 12, 1, 1, 1, 8, 32768, 104.51),
    Run("70B", 12, 2, 1, 1, 4, 131072, 112.67),
    Run("70B", 12, 1, 1, 1, 8, 131072, 147.99),
    Run("405B", 4, 1, 2, 4, 1, 4096, 87.08),
    Run("405B", 4, 2, 1, 4, 1, 4096, 81.59),
    Run("405B", 4, 4, 1, 2, 1, 4096, 52.89),
    Run("405B", 4, 8, 1, 1, 1, 4096, 38.57),
    Run("405B", 4, 2, 1, 1, 4, 32768, 87.03),
    Run("405B", 4, 1, 1, 1, 8, 32768, 139.22),
    Run("405B", 4, 2, 1, 1, 4, 131072, 118.13),
)


def predicted_gib(run: Run) -> float:
    profile = table(MODELS[run.model], run.layers, run.tokens, tensor=run.tensor, context=run.context)
    half = 1 + run.layers // run.pipeline
    layout = Layout(
        data_parallel=run.data,
        pipeline=run.pipeline,
        tensor_parallel=run.tensor,
        context_parallel=run.context,
        micro_batch=1,
        micro_batches=4,
        cuts=((0, run.layers + 1),) if run.pipeline == 1 else ((0, half - 1), (half, run.layers + 1)),
    )
    cluster = Cluster(devices=layout.devices, hop=LINK, collective=LINK)
    job = Job(cluster=cluster, optimizer=OPTIMIZERS["adam-mixed"], sharding="optimizer")
    step = build_step(profile, layout, job)
    found = estimate_step(step, ONE_F_ONE_B.build(step.placement, micro_batches=4))
    return max(found.memory_bytes) / GIB


def test_peaks_of_llama_runs_follow_from_shapes() -> None:
    """All are below: what a linear layer's backward needs while it runs, and the driver, are left out."""
    errors = [predicted_gib(run) / run.gib - 1 for run in RUNS]
    assert -0.10 < min(errors) <= max(errors) < 0.0
    assert statistics.median(map(abs, errors)) < 0.04


@pytest.mark.parametrize(("sharding", "fits"), [("optimizer", True), ("none", False)])
def test_llama_405b_fits_on_512_devices_of_80_gib(sharding: str, *, fits: bool) -> None:
    """Eight devices a layer, two a sequence, eight of a pipeline in eight chunks of two layers each."""
    profile = table(MODELS["405B"], 126, 8192, tensor=8, context=2)
    bounds = (0, *range(2, 128, 2), 128)
    layout = Layout(
        data_parallel=4,
        pipeline=8,
        tensor_parallel=8,
        context_parallel=2,
        micro_batch=1,
        micro_batches=16,
        placement="interleaved",
        cuts=tuple((first, after - 1) for first, after in itertools.pairwise(bounds)),
    )
    assert layout.devices == 512
    assert layout.chunks == 8
    cluster = Cluster(devices=512, hop=LINK, collective=LINK)
    job = Job(cluster=cluster, optimizer=OPTIMIZERS["adam-mixed"], sharding=sharding)
    step = build_step(profile, layout, job)
    schedule = INTERLEAVED_1F1B.build(step.placement, micro_batches=step.micro_batches)
    held = max(estimate_step(step, schedule).memory_bytes) / GIB
    assert (held <= 80) == fits, held

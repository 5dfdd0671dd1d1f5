"""vTrain's 109 multi-node runs of GPT models on A100, with layer times scaled from NeuSight's labels.

    git clone https://github.com/VIA-Research/vTrain
    git clone https://github.com/sitar-lab/NeuSight
    python -m benchmarks.reality vtrain --clone vTrain NeuSight

No profile of these models is public, so layers are scaled from one measured block of a smaller one:
`label/NVIDIA_A100_80GB_PCIe/gpt3_xl-train-2048-1.csv`, 3,072 columns and heads of 128 as in all of the runs,
float32 without TF32. A product scales with its operations and with the ratio of the peaks (19.5 to 312
TFLOP/s), but takes no less than its traffic at 1,935 GB/s; everything else scales with its bytes, half as
many of them in 16 bits. Operators that Megatron fuses are counted once. Collectives of tensor parallelism are
rings over the links that vTrain's own configurations state: 150 GB/s within a node, 800 Gbit/s between nodes
of 8. All runs recompute each layer's forward (`use_checkpoint`).

Nothing is calibrated. `ground_truth_single.csv` is not used: its times are exactly linear in
micro-batches, so they are composed, not measured.

Sources: Bang et al., vTrain (MICRO 2024), github.com/VIA-Research/vTrain, and Lee et al., NeuSight (ASPLOS
2025), github.com/sitar-lab/NeuSight, both MIT licence. Recomputation and 1F1B as in Narayanan et al. (SC
2021).
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.reality.numbers import mean_of, percent
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.planning.cluster import Cluster, Link, Optimizer
from tessel.planning.costs.training_step import build_step, estimate_step
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.runtime import DEEPSPEED
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts

EXTRACT = Path(__file__).parents[1] / "data" / "vtrain.json"

LABEL = "scripts/asplos/label/NVIDIA_A100_80GB_PCIe/gpt3_xl-train-2048-1.csv"

OPERATORS = {
    "transformer_h_0_ln_1": "norm",
    "addmm": "qkv",
    "matmul": "scores",
    "softmax": "softmax",
    "transformer_h_0_attn_attn_dropout": "attention_dropout",
    "matmul_1": "context",
    "addmm_1": "projection",
    "transformer_h_0_attn_resid_dropout": "residual_dropout",
    "add_10": "residual_add",
    "addmm_2": "up",
    "mul_3": "gelu",
    "addmm_3": "down",
    "lm_head": "head",
}
"""Operators of the label that Megatron runs as kernels, and what they are called here. Scaling and masking of
scores belong to its softmax, and the eight of the activation are one of two operands."""

HIDDEN, HEADS, SEQUENCE, VOCABULARY = 3072, 24, 2048, 50257
"""Of the label, at one sample."""

PADDED_VOCABULARY = 51_200
"""Of the runs (Narayanan et al.)."""

PEAK_RATIO = 312 / 19.492
BYTES_PER_S = 1935e9

NODE = 8
INTRA = Link(bytes_per_s=150e9)
INTER = Link(bytes_per_s=100e9 / NODE)
"""One device's share of 800 Gbit/s."""

MIXED = Optimizer(name="adam, 16-bit gradients", gradient_ratio=1.0, state_ratio=6.0)

RUNTIME = msgspec.structs.replace(DEEPSPEED, context_bytes=0)


class Operator(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Milliseconds of an operator of the label."""

    forward_ms: float
    backward_ms: float


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row of the ground truth."""

    billions: float
    gpus: int
    global_batch: int
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    tensor_parallel: int
    data_parallel: int
    pipeline: int
    real_ms: float


class Extract(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is kept of both collections."""

    sources: tuple[str, ...]
    licenses: tuple[str, ...]
    operators: dict[str, Operator]
    runs: tuple[Run, ...]


class Estimate(NamedTuple):
    """A run and what it was estimated to take."""

    run: Run
    ms: float

    @property
    def error(self) -> float:
        return self.ms / self.run.real_ms - 1


def load_extract() -> Extract:
    """Return the extract that is kept here."""
    return msgspec.json.decode(EXTRACT.read_bytes(), type=Extract)


def read_clones(vtrain: Path, neusight: Path) -> Extract:
    """Return the extract of two clones, and keep it."""
    csv.field_size_limit(1 << 24)
    with (neusight / LABEL).open(newline="") as lines:
        operators = {
            OPERATORS[row["Name"]]: Operator(
                forward_ms=float(row["fw_latency"]),
                backward_ms=float(row["bw_latency"]) + float(row["acc_latency"]),
            )
            for row in csv.DictReader(lines)
            if row["Name"] in OPERATORS
        }
    with (vtrain / "data/ground_truth_multi.csv").open(newline="", encoding="utf-8-sig") as lines:
        runs = tuple(map(_run, list(csv.reader(lines))[1:]))
    extract = Extract(
        sources=(
            "Bang et al., vTrain (MICRO 2024), github.com/VIA-Research/vTrain, data/ground_truth_multi.csv",
            f"Lee et al., NeuSight (ASPLOS 2025), github.com/sitar-lab/NeuSight, {LABEL}",
        ),
        licenses=(
            "MIT, copyright (c) 2024, VIA Research Group at KAIST",
            "MIT, copyright (c) 2025 Georgia Institute of Technology and Microsoft Corporation",
        ),
        operators=operators,
        runs=runs,
    )
    rows = ",\n".join(msgspec.json.encode(run).decode() for run in runs)
    head = msgspec.json.encode(msgspec.structs.replace(extract, runs=())).decode()
    EXTRACT.write_text(head.removesuffix("[]}") + "[\n" + rows + "\n]}\n")
    return extract


def _run(row: Sequence[str]) -> Run:
    billions, gpus, batch, micro, hidden, heads, layers, _, tensor, data, pipeline, ms = row
    return Run(
        billions=float(billions),
        gpus=int(gpus),
        global_batch=int(batch),
        micro_batch=int(micro),
        hidden=int(hidden),
        heads=int(heads),
        layers=int(layers),
        tensor_parallel=int(tensor),
        data_parallel=int(data),
        pipeline=int(pipeline),
        real_ms=float(ms),
    )


@dataclass(frozen=True, slots=True)
class _Scaling:
    """From an operator of the label to one of a run's block, on one device."""

    operators: dict[str, Operator]
    run: Run

    def product(self, name: str, *, work: float, traffic_bytes: float) -> tuple[float, float]:
        """Return microseconds of a matrix product.

        Args:
            name: of the operator.
            work: operations in multiples of the label's.
            traffic_bytes: least bytes that its forward moves.
        """
        figures = self.operators[name]
        least_us = traffic_bytes / BYTES_PER_S * 1e6
        scale = work / PEAK_RATIO * 1e3
        return max(figures.forward_ms * scale, least_us), max(figures.backward_ms * scale, 2 * least_us)

    def moved(self, name: str, *, elements: float) -> tuple[float, float]:
        """Return microseconds of an operator that takes as long as its bytes, half as many as the label's."""
        figures = self.operators[name]
        return figures.forward_ms * elements / 2 * 1e3, figures.backward_ms * elements / 2 * 1e3

    def linear(self, name: str, rows: float, columns: float) -> tuple[float, float]:
        """Return microseconds of tokens times a matrix of so many multiples of the hidden size."""
        run = self.run
        width = run.hidden / HIDDEN
        tokens = run.micro_batch * SEQUENCE
        sizes = tokens * rows + tokens * columns + rows * columns * run.hidden
        return self.product(
            name,
            work=run.micro_batch * width * width / run.tensor_parallel,
            traffic_bytes=2 * run.hidden * sizes / run.tensor_parallel,
        )


def profile_of(extract: Extract, run: Run) -> Profile:
    """Return the profile of a run's model at its micro-batch and degree."""
    scaling = _Scaling(extract.operators, run)
    boundary = 2 * run.micro_batch * SEQUENCE * run.hidden
    all_reduce_us = _all_reduce_us(run, boundary)
    forward_us, backward_us = map(sum, zip(*_block(scaling), strict=True))
    head = scaling.product(
        "head",
        work=run.micro_batch * run.hidden / HIDDEN * PADDED_VOCABULARY / VOCABULARY / run.tensor_parallel,
        traffic_bytes=0.0,
    )
    embedding_bytes = 2 * PADDED_VOCABULARY * run.hidden // run.tensor_parallel
    block = StageCosts(
        forward_us=forward_us + 2 * all_reduce_us,
        backward_us=backward_us + 2 * all_reduce_us,
        weight_bytes=2 * 12 * run.hidden**2 // run.tensor_parallel,
        boundary_bytes=boundary,
    )
    ends = (
        StageCosts(forward_us=0.0, backward_us=0.0, weight_bytes=embedding_bytes, boundary_bytes=boundary),
        StageCosts(forward_us=head[0], backward_us=head[1] + all_reduce_us, weight_bytes=embedding_bytes),
    )
    names = ("embedding", *(f"block{index}" for index in range(run.layers)), "head")
    return Profile(
        name=f"GPT {run.billions}B",
        device="A100",
        layers=tuple(Layer(name, "" if name.startswith("block") else "embedding") for name in names),
        tables=(
            CostTable(
                micro_batch=run.micro_batch,
                tensor_parallel=run.tensor_parallel,
                costs=(ends[0], *[block] * run.layers, ends[1]),
            ),
        ),
    )


def _block(scaling: _Scaling) -> Iterator[tuple[float, float]]:
    """Yield microseconds, forward and backward, of each operator of a block on one device."""
    run = scaling.run
    tokens = run.micro_batch * run.hidden / HIDDEN
    scores = run.micro_batch * run.heads / HEADS / run.tensor_parallel
    score_bytes = 2 * run.micro_batch * run.heads * SEQUENCE**2 / run.tensor_parallel
    yield from [scaling.moved("norm", elements=tokens)] * 2
    yield scaling.linear("qkv", 1, 3)
    yield scaling.product("scores", work=scores, traffic_bytes=score_bytes)
    yield scaling.moved("softmax", elements=scores)
    yield scaling.moved("attention_dropout", elements=scores)
    yield scaling.product("context", work=scores, traffic_bytes=score_bytes)
    yield scaling.linear("projection", 1, 1)
    for name in ("residual_dropout", "residual_add"):
        yield from [scaling.moved(name, elements=tokens)] * 2
    yield scaling.linear("up", 1, 4)
    yield scaling.moved("gelu", elements=tokens / run.tensor_parallel)
    yield scaling.linear("down", 4, 1)


def _all_reduce_us(run: Run, num_bytes: int) -> float:
    devices = run.tensor_parallel
    # A group of whole nodes has all of their links.
    link = INTRA if devices <= NODE else Link(bytes_per_s=INTER.bytes_per_s * NODE)
    return 2 * (devices - 1) / devices * link.transfer_us(num_bytes)


def layout_of(run: Run) -> Layout:
    """Return a run's layout: as many blocks a stage, recomputed."""
    each = run.layers // run.pipeline
    bounds = [0, *(1 + each * (index + 1) for index in range(run.pipeline - 1)), run.layers + 2]
    return Layout(
        data_parallel=run.data_parallel,
        pipeline=run.pipeline,
        tensor_parallel=run.tensor_parallel,
        micro_batch=run.micro_batch,
        micro_batches=run.global_batch // (run.micro_batch * run.data_parallel),
        cuts=tuple((first, after - 1) for first, after in pairwise(bounds)),
        recompute=(True,) * run.pipeline,
    )


def estimate(extract: Extract, run: Run) -> Estimate:
    """Return what a run is estimated to take."""
    cluster = Cluster(devices=run.gpus, hop=INTER, collective=INTER, intra_node=INTRA, devices_per_node=NODE)
    step = build_step(
        profile_of(extract, run), layout_of(run), Job(cluster=cluster, optimizer=MIXED, runtime=RUNTIME)
    )
    schedule = ONE_F_ONE_B.build(step.placement, micro_batches=step.micro_batches)
    return Estimate(run, estimate_step(step, schedule).step_us / 1e3)


def tables(extract: Extract) -> Iterator[str]:
    """Yield rank correlation and errors by size of model, and by degree of tensor parallelism."""
    found = [estimate(extract, run) for run in extract.runs]
    yield (
        "| runs | number | rank correlation | mean error | median | fastest really | its place, ours | "
        "slower than it: our first |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for size in sorted({each.run.billions for each in found}):
        yield _row(f"{size} billion parameters", [each for each in found if each.run.billions == size])
    for degree in sorted({each.run.tensor_parallel for each in found}):
        chosen = [each for each in found if each.run.tensor_parallel == degree]
        yield f"| {degree} devices a layer | {len(chosen)} {_figures(chosen)} | | | |"
    yield f"| all | {len(found)} {_figures(found)} | | | |"


def _figures(found: Sequence[Estimate]) -> str:
    correlation = rank_correlation([each.ms for each in found], [each.run.real_ms for each in found])
    errors = [abs(each.error) for each in found]
    return f"| {correlation:.3f} | {percent(mean_of(errors))} | {percent(statistics.median(errors))}"


def _row(name: str, found: Sequence[Estimate]) -> str:
    best = min(found, key=lambda each: each.run.real_ms)
    ours = sorted(found, key=lambda each: each.ms)
    run = best.run
    layout = f"T{run.tensor_parallel} P{run.pipeline} D{run.data_parallel}, micro-batch {run.micro_batch}"
    return (
        f"| {name} | {len(found)} {_figures(found)} | {layout} | {ours.index(best) + 1} "
        f"| {percent(ours[0].run.real_ms / run.real_ms - 1)} |"
    )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation; equal values have the mean of their ranks."""
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: np.ndarray[tuple[int], np.dtype[np.float64]] = ((2 * last - counts + 1) / 2)[places]
    return ranks

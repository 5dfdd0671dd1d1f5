"""Memory of Megatron-LM's own functional tests, beside what is predicted of the same rank.

`megatron_tests.csv` says how each test trains, `megatron_memory.csv` what was allocated on the last rank,
which writes the logs: at most, and after a step. Source: NVIDIA/Megatron-LM (BSD-type licence),
configurations and golden values under `tests/functional_tests/test_cases`, as of the commit that recorded a
value, and sizes of jobs under `tests/test_utils/recipes`. All rows over 10 GB of tests that name several
pipeline stages are there; `run_as` is the test whose layout was run, where that is another.

Where the size of a job is not published, it is the power of two whose replicas hold nearest to what is
allocated after a step. The peak has no part in that.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.published.layouts import PublishedRun, Simulated, cuts_of, profile_of, simulate
from tessel.architectures.architecture import (
    Architecture,
    Attention,
    Block,
    Experts,
    FeedForward,
    LatentAttention,
    Linear,
    Part,
)
from tessel.architectures.gpu_sheets import find_sheet
from tessel.architectures.shape import Recipe

FOLDER = Path(__file__).parent
MOMENTS = 8 / 18
"""Of what a device without replicas holds."""


@dataclass(frozen=True, slots=True)
class Row:
    """A test, its device, its memory, and what is predicted.

    Attributes:
        test: as named.
        run_as: the test whose layout was run.
        device: environment and machine.
        run: what was run.
        peak_bytes: the most that was allocated.
        held_bytes: allocated after a step.
        ours: what is simulated.
        ours_held_bytes: weights, gradients and optimizer state, predicted.
        is_first_step: whether no other step was run.
    """

    test: str
    run_as: str
    device: str
    run: PublishedRun
    peak_bytes: int
    held_bytes: int
    ours: Simulated
    ours_held_bytes: float
    is_first_step: bool

    @property
    def ours_bytes(self) -> float:
        """Predicted memory of the last stage; in the first step moments of Adam are made at its end."""
        found = self.ours.memory_bytes[-1]
        return (
            max(self.ours_held_bytes, found - MOMENTS * self.ours_held_bytes) if self.is_first_step else found
        )


def load_rows() -> list[Row]:
    """Read the tests and simulate each."""
    with (FOLDER / "megatron_tests.csv").open() as file:
        tests = {each["test"]: each for each in csv.DictReader(file)}
    rows = []
    with (FOLDER / "megatron_memory.csv").open() as file:
        for each in csv.DictReader(file):
            test, held = tests[each["run_as"]], int(each["held_bytes"])
            run, ours_held = _of_size(test, held)
            gpu = each["device"].rpartition("_")[2].replace("dgxc", "h100")
            rows.append(
                Row(
                    test=each["test"].rpartition("/")[2],
                    run_as=each["run_as"].rpartition("/")[2],
                    device=each["device"],
                    run=run,
                    peak_bytes=int(each["peak_bytes"]),
                    held_bytes=held,
                    ours=simulate(run, find_sheet(gpu)),
                    ours_held_bytes=ours_held,
                    is_first_step=test["steps"] == "1",
                )
            )
    return rows


def _of_size(test: dict[str, str], held: int) -> tuple[PublishedRun, float]:
    """Return what a test runs, and what its last rank holds, on as many devices as that tells."""
    run = run_of_test(test)
    experts, others = last_rank_weights(run)
    sizes = [run.devices] if test["devices"] else [run.devices << doubled for doubled in range(8)]

    def holds(devices: int) -> float:
        replicas = replace(run, devices=devices).data_parallel
        state = others / replicas + experts / max(1, replicas // run.expert_parallel)
        # Of 16 bits each weight, and a gradient of 32; of the state, three times 32.
        return 3.0 * (experts + others) + 6.0 * state

    devices = min(sizes, key=lambda devices: abs(holds(devices) - held))
    return replace(run, devices=devices), holds(devices)


def last_rank_weights(run: PublishedRun) -> tuple[int, int]:
    """Return the bytes of routed experts and of other weights of the pipeline's last rank."""
    profile = profile_of(run, find_sheet("h100"), lambda _: 1.0)
    cuts = cuts_of([layer.name for layer in profile.layers], run.stages)
    costs = [
        cost
        for first, last in cuts[run.pipeline - 1 :: run.pipeline]
        for cost in profile.tables[0].costs[first : last + 1]
    ]
    experts = sum(cost.expert_bytes for cost in costs)
    return experts, sum(cost.weight_bytes for cost in costs) - experts


def run_of_test(test: dict[str, str]) -> PublishedRun:
    """Return what a test runs, on the fewest devices that it may have."""
    number = {name: int(value) for name, value in test.items() if value.isdigit()}
    tensor, expert = number["tensor"], number["expert"]
    splits_experts = bool(number["splits_experts"])
    groups = expert if splits_experts else expert // tensor
    stages = tuple(map(int, test["layout"].split()))
    return PublishedRun(
        model=test["test"],
        made=architecture_of_test(test["test"], sum(stages), number),
        devices=number.get("devices", tensor * number["pipeline"] * groups),
        tensor_parallel=tensor,
        pipeline=number["pipeline"],
        expert_parallel=groups,
        chunks=number["chunks"],
        micro_batch=number["micro_batch"],
        global_batch=number["global_batch"],
        stages=stages,
        recipe=Recipe(
            tokens=number["tokens"],
            dtype="fp8" if test["dtype"] == "fp8" else "bf16",
            recompute=frozenset(test["recompute"].split()),
            has_flash_attention=bool(number["has_flash"]),
            has_dropout=bool(number["has_dropout"]),
            has_fused_loss=test["loss"] == "fused",
            has_compiled_loss=test["loss"] == "compiled",
            splits_experts=splits_experts,
            fuses_sums=bool(number["fuses_sums"]),
        ),
    )


def architecture_of_test(name: str, count: int, number: dict[str, int]) -> Architecture:
    """Return the model of so many layers that a test's numbers describe."""
    hidden, heads = number["hidden"], number["heads"]
    has_bias, is_gated = bool(number["has_bias"]), bool(number["is_gated"])
    attention: Part = Attention(
        heads=heads,
        kv_heads=number["kv_heads"],
        head_dim=number["head_dim"],
        qkv_bias=has_bias,
        out_bias=has_bias,
        has_rotary=not number["positions"],
    )
    if number["is_latent"]:  # all of them have the ranks of DeepSeek-V3
        attention = LatentAttention(
            heads=heads, query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128
        )
    dense = FeedForward(width=number["width"], is_gated=is_gated, has_bias=has_bias)
    expert = FeedForward(width=number["expert_width"] or 1)
    # Of these tests, those with latent attention have a shared expert as wide as one of the others.
    experts = Experts(
        count=number["experts"],
        top_k=number["top_k"],
        expert=expert,
        shared=expert if number["is_latent"] else None,
    )
    norms = number["norms"] * hidden
    first, then = (
        Block(hidden=hidden, parts=(attention, part), norm_parameters=2 * norms) for part in (dense, experts)
    )
    # A predictor on another stage than the embedding has a copy of it, which stands with the vectors.
    copied = number["vocabulary"] // number["tensor"] * hidden if number["pipeline"] > 1 else 0
    predictor = replace(
        then, norm_parameters=5 * norms + copied, joint=(Linear(2 * hidden, hidden, "outputs"),)
    )
    return Architecture(
        name=name,
        family="megatron",
        hidden=hidden,
        vocabulary=number["vocabulary"],
        blocks=(first,) * number["dense"] + (then,) * (count - number["dense"]),
        predictors=(predictor,) * number["predictors"],
        is_tied=False,
        norm_parameters=norms,
        positions=number["positions"],
    )

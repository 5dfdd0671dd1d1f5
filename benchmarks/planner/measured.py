"""Eight measured profiles with both halves of their backwards, made of public collections.

The collections time whole backwards. How much of one makes the weights' gradients follows from the operators:
of a product with weights half of the backward, of an embedding all, of everything else (scores, softmax,
dropout, normalization) nothing. Aceso's and NeuSight's files time each operator. Llama's files time whole
layers: the products with weights get their share of the forward's operations, though softmax and dropout
take time too, so that its weight half is rather too long.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.profile_readers.load import load
from tessel.profiles.profile import CostTable, Profile, StageCosts

DEVICES = {"A100-40": "A100", "GH-96": "GH200", "V100-16": "V100"}
"""Sailor's names of the devices."""

LLAMA_DEGREES = {"A100-40": 4, "GH-96": 4, "V100-16": 4}
"""Tensor-parallel degrees of Llama's profiles: a device of a plan stands for a group of so many."""

LLAMA_TOKENS, LLAMA_COLUMNS, LLAMA_BLOCK_WEIGHTS = 8192, 4096, 218_103_808

LABELS = (("gpt2_large-train-1024-4", "GPT-2-large"), ("gpt3_27-train-2048-1", "GPT-3-2.7B"))
"""NeuSight's labels on H100."""


def measured_profiles(sailor: Path, neusight: Path) -> Iterator[Profile]:
    """Yield the eight profiles of clones of eth-easl/sailor and sitar-lab/NeuSight."""
    planner = sailor / "sailor" / "Planner"
    for gpu in DEVICES:
        path = planner / f"baselines/Aceso/profiler/{gpu}/profiled-data-fp16/GPT-Neo-2.7_mbs1_tp1_algo0.csv"
        yield _named(load(path, micro_batch=1), "GPT-Neo-2.7B", DEVICES[gpu], _aceso_shares(path))
    products = 2 * LLAMA_TOKENS * LLAMA_BLOCK_WEIGHTS
    # Scores and values of causal attention without a fused kernel: all pairs are computed.
    attention = 4 * LLAMA_TOKENS**2 * LLAMA_COLUMNS
    shares = (1.0, products / (products + attention) / 2, 0.5)
    for gpu, degree in LLAMA_DEGREES.items():
        path = planner / f"sailor_planner/profiles/LLAMA-3-8/{gpu}/profile.json"
        profile = load(path, micro_batch=1, tensor_parallel=degree)
        yield _named(profile, f"Llama-3-8B-tp{degree}", DEVICES[gpu], shares)
    for label, name in LABELS:
        path = neusight / f"scripts/asplos/label/NVIDIA_H100_80GB_HBM3/{label}.csv"
        yield _named(load(path), name, "H100", _neusight_shares(path))


def _named(profile: Profile, model: str, device: str, shares: Sequence[float]) -> Profile:
    """Return a profile of one table with halves.

    Args:
        profile: as it was read; the first of its tables is taken.
        model: its name.
        device: measured on.
        shares: of the weight half in the backward of embedding, block and head.
    """
    costs = profile.tables[0].costs
    by_layer = (shares[0], *(shares[1] for _ in costs[2:]), shares[2])
    return msgspec.structs.replace(
        profile,
        name=model,
        device=device,
        notes=(),
        tables=(
            CostTable(
                micro_batch=profile.tables[0].micro_batch,
                tensor_parallel=1,
                costs=tuple(map(_with_halves, costs, by_layer)),
            ),
        ),
    )


def _with_halves(cost: StageCosts, share: float) -> StageCosts:
    assert cost.backward_us is not None  # these collections time whole backwards
    return msgspec.structs.replace(
        cost,
        backward_input_us=(1 - share) * cost.backward_us,
        backward_weight_us=share * cost.backward_us,
        update_us=None,
    )


def _aceso_shares(path: Path) -> tuple[float, float, float]:
    rows = list(csv.DictReader(path.read_text().splitlines()))
    block = [row for row in rows if row["op_name"].startswith("enc-")]
    behind = rows[rows.index(block[-1]) + 1 :]
    inner, last = (
        _share([(float(row["backward-compute"]), float(row["weights"]) > 0) for row in group])
        for group in (block, behind)
    )
    return 1.0, inner, last


def _neusight_shares(path: Path) -> tuple[float, float, float]:
    rows = [row for row in csv.DictReader(path.read_text().splitlines()) if float(row["bw_latency"]) > 0]
    inner = [index for index, row in enumerate(rows) if ".h.0" in f"{row['meta']} {row['target']}"]
    groups = rows[inner[0] : inner[-1] + 1], rows[inner[-1] + 1 :]
    block, last = (_share([(_backward_ms(row), _is_linear(row)) for row in group]) for group in groups)
    return 1.0, block, last


def _backward_ms(row: Mapping[str, str]) -> float:
    return float(row["bw_latency"]) + float(row["acc_latency"])


def _is_linear(row: Mapping[str, str]) -> bool:
    return any(f".{name}'" in row["meta"] for name in ("Linear", "Conv1D"))


def _share(operators: Sequence[tuple[float, bool]]) -> float:
    return (
        sum(time for time, has_weights in operators if has_weights) / 2 / sum(time for time, _ in operators)
    )

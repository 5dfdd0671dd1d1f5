"""SimuMax's runs on eight B200, beside its own predictions, with the rates of its system file as prices.

Both predictions then have the same hardware. The file's rates of attention count the operations of all pairs
of tokens, half of which the causal mask leaves out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.published.layouts import PublishedRun, Simulated, simulate
from tessel.architectures.gpu_sheets import find_sheet
from tessel.architectures.kernels import AttentionCore, Beside, Exchange, Kernel, Moved, Product, Scan
from tessel.architectures.shape import Recipe

MODELS = {
    "llama3-70b": "llama-3.1-70b",
    "llama3-405b": "llama-3.1-405b",
    "deepseekv2": "deepseek-v2",
    "deepseekv3": "deepseek-v3",
}
KINDS = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_to_all": "all2all",
    "ring": "p2p",
}
ACCESSES = {"in_order": "default", "permuted": "permute_fwd", "loss": "ce_fusion"}
"""Names of the file's bandwidths; its backward of a permutation is 2 % faster."""
VOCABULARY = {32064: 32128, 16032: 16128}
"""A device's share of 128 256 tokens, and as Megatron pads it to a multiple of 128 on each device."""
EXPERT_ROWS = {1229: 1232, 614: 616}
"""Rows of an expert of DeepSeek-V2 in the mean, and as those of each sender are rounded up."""


@dataclass(frozen=True, slots=True)
class SystemPrice:
    """Prices of kernels from the rates of a system file of SimuMax."""

    system: Mapping[str, Any]

    def __call__(self, kernel: Kernel) -> float:
        """Return the microseconds of a kernel."""
        if isinstance(kernel, Exchange):
            return self._exchange_us(kernel)
        if isinstance(kernel, Beside):
            return max(self(kernel.kernel), self(kernel.exchange))
        if isinstance(kernel, Moved):
            return self._moved_us(kernel)
        assert not isinstance(kernel, Scan), "no state space was run"
        operation, factor = self._rate(kernel)
        flops = kernel.flops * (2 if isinstance(kernel, AttentionCore) else 1)
        return flops / (self._operations[operation]["tflops"] * factor) / 1e6

    @property
    def _operations(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.system["accelerator"]["op"]
        return found

    def _moved_us(self, kernel: Moved) -> float:
        memory = self.system["accelerator"]["bandwidth"][ACCESSES[kernel.access]]
        rate = memory["gbps"] * memory["efficient_factor"]
        return float(memory["latency_us"] + kernel.moved_bytes / rate / 1e3)

    def _rate(self, kernel: Product | AttentionCore) -> tuple[str, float]:
        operation, keys = _keys(kernel)
        known = self._operations[operation]["accurate_efficient_factor"] or {}
        found = next((known[key] for key in keys if key in known), None)
        return operation, float(found or self._operations[operation]["efficient_factor"])

    def _exchange_us(self, exchange: Exchange) -> float:
        network = self.system["networks"]["high_intra_node"]
        kind = network["op"][KINDS[exchange.kind]]
        devices = exchange.devices
        rate = network["bandwidth"]["gbps"] * 1e3 * kind["efficient_factor"]
        fixed_us = kind.get("fixed_latency_us", 0.0)
        fixed_us = kind.get("fixed_latency_us_by_comm_num", {}).get(str(devices), fixed_us)
        latency_us = kind["latency_us"] + fixed_us
        if exchange.kind == "ring":
            return float((devices - 1) * (latency_us + exchange.num_bytes / rate))
        sent = exchange.num_bytes * (devices - 1) / devices * (2 if exchange.kind == "all_reduce" else 1)
        return float(latency_us + sent / rate)


def _keys(kernel: Product | AttentionCore) -> tuple[str, tuple[str, ...]]:
    """Return the operation of a kernel in the file, and the keys under which its rate may stand."""
    if isinstance(kernel, AttentionCore):
        parts = round(kernel.tokens / kernel.queries)
        heads, kv_heads = round(kernel.heads / parts), round(max(1.0, kernel.kv_heads / parts))
        key = (
            f"batch={kernel.batch}, seq_len={kernel.tokens}, head_num={heads}, kv_head_num={kv_heads}, "
            f"qk_head_dim={kernel.key_dim}, v_head_dim={kernel.value_dim}, qkv_contiguous=True"
        )
        return ("sdp_bwd" if kernel.is_backward else "sdp_fwd"), (key,)
    rows = round(kernel.rows)
    if kernel.groups > 1:
        of = f"ng={kernel.groups}, M={EXPERT_ROWS.get(round(rows / kernel.groups), rows // kernel.groups)}, "
        forward = f"{of}N={kernel.outputs}, K={kernel.inputs},"
        if kernel.sums_rows:
            return "group_matmul", (f"{forward}|bwd_grad_w",)
        backward = f"{of}N={kernel.inputs}, K={kernel.outputs},"
        return "group_matmul", (f"{forward}|fwd", f"{backward}|bwd_grad_act")
    outputs, inputs = (
        VOCABULARY.get(kernel.outputs, kernel.outputs),
        VOCABULARY.get(kernel.inputs, kernel.inputs),
    )
    if kernel.sums_rows:
        sizes = f"b=1, m={outputs}, k={rows}, n={inputs}, layout=NT, accumulate=True, "
        return "matmul", (f"{sizes}out_dtype=fp32",)
    sizes = f"b=1, m={rows}, k={inputs}, n={outputs}, layout="
    return "matmul", tuple(f"{sizes}{layout}, accumulate=False, out_dtype=bf16" for layout in ("TN", "NN"))


@dataclass(frozen=True, slots=True)
class Row:
    """A run, what it took, and both predictions; times in ms, memory in GiB."""

    case: str
    run: PublishedRun
    real_ms: float
    real_gib: float
    theirs_ms: float
    theirs_gib: float
    ours: Simulated

    @property
    def ours_ms(self) -> float:
        """Predicted step."""
        return self.ours.step_us / 1e3

    @property
    def ours_gib(self) -> float:
        """Predicted memory of the fullest device."""
        return max(self.ours.memory_bytes) / 2**30


def load_rows(folder: Path) -> list[Row]:
    """Read the runs, and simulate each."""
    document = json.loads((folder / "b200_release_v1.2_summary.json").read_bytes())
    price = SystemPrice(_with_short_keys(json.loads((folder / "b200_bf16_ceperm.json").read_bytes())))
    rows = []
    for each in document["rows"]:
        run = _run(each)
        rows.append(
            Row(
                each["case"],
                run,
                each["real_ms"],
                each["real_alloc_gib"],
                each["perf_ms"],
                each["perf_alloc_gib"],
                simulate(run, find_sheet("b200"), price),
            )
        )
    return rows


def _with_short_keys(system: dict[str, Any]) -> dict[str, Any]:
    """Return the system with rates of grouped products under their sizes and stage alone."""
    grouped = system["accelerator"]["op"]["group_matmul"]
    short: dict[str, float] = {}
    for key, rate in grouped["accurate_efficient_factor"].items():
        if "main_grad_dtype=fp32" not in key:
            continue
        sizes = key[: key.index(" dtype=")]
        stage = re.search(r"stage=(\w+)", key)
        assert stage is not None, "every rate of the file names its stage"
        short[f"{sizes}|{stage[1]}"] = rate
    grouped["accurate_efficient_factor"] = short
    return system


def _run(row: Mapping[str, Any]) -> PublishedRun:
    def degree(name: str, default: int = 1) -> int:
        found = re.search(rf"(?:^|_){name}(\d+)", row["case"])
        return int(found[1]) if found else default

    return PublishedRun(
        model=MODELS[row["model"]],
        devices=8,
        recipe=Recipe(tokens=degree("seq", 4096), context_exchange="all_to_all"),
        tensor_parallel=degree("tp"),
        pipeline=degree("pp"),
        context_parallel=degree("cp"),
        expert_parallel=degree("ep"),
        global_batch=row["mbc"] * degree("dp"),
        blocks=row["layer_num"],
        # The file's products have 20 480 outputs: keys and values of 16 heads, as the first config said.
        kv_heads=16 if row["model"] == "llama3-405b" else None,
        dense_blocks=1 if row["model"].startswith("deepseek") else None,
        has_predictors=False,
    )

"""The tables of measured networks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

OTHERS = ("torch eager", "torch.compile", "torch.compile frozen", "onnxruntime alone")

LONGEST = "onnxruntime"
"""The library that takes whole networks; what the other backends make without it is measured too."""


WITHOUT = f"mix without {LONGEST}"

OWN_KERNELS = ("attention", "nhwc", "packed_matmul")
"""Backends whose kernels are written in this project; the others' come from libraries and from TVM."""


def report(networks: Sequence[dict[str, Any]]) -> str:
    """Return the tables as Markdown."""
    labels = {label for each in networks for label in each["latency_ms"]}
    singles = sorted(labels - {"mix", WITHOUT, *OTHERS})
    lines = ["Latency in milliseconds, medians of executions in turn.", ""]
    mixes = [label for label in ("mix", WITHOUT) if label in labels]
    lines += _latencies(networks, [*mixes, *singles, *OTHERS])
    lines += [
        "",
        "Latency over the mix's: above 1 the mix is faster. In brackets, where another program than the mix "
        "is the best single backend, the 95 % interval of the median ratio within a round.",
        "",
    ]
    lines += _ratios(networks, "mix", singles)
    if WITHOUT in labels:
        lines += ["", f"The same without {LONGEST} among the backends.", ""]
        lines += _ratios(networks, WITHOUT, [label for label in singles if label != LONGEST])
    lines += [
        "",
        "What is left to win: the same products at the peak of this machine's core, and nothing besides.",
        "",
    ]
    lines += _room(networks, singles)
    return "\n".join(lines)


def _latencies(networks: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[str]:
    lines = [
        f"| network | {' | '.join(columns)} | error of the mix |",
        f"|---|{'--:|' * (len(columns) + 1)}",
    ]
    for each in networks:
        latency_ms = each["latency_ms"]
        cells = [f"{latency_ms[label]:.2f}" if label in latency_ms else "–" for label in columns]
        lines.append(f"| {each['network']} | {' | '.join(cells)} | {each['errors']['mix']:.1e} |")
    return lines


def _ratios(networks: Sequence[dict[str, Any]], mix: str, singles: Sequence[str]) -> list[str]:
    lines = [
        f"| network | best single backend | best one without own kernels | {' | '.join(OTHERS)} | parts |",
        f"|---|--:|--:|{'--:|' * len(OTHERS)}---|",
    ]
    ratios: dict[str, list[float]] = {label: [] for label in ("best", "without own", *OTHERS)}
    for each in networks:
        latency_ms = each["latency_ms"]
        if mix not in latency_ms:
            continue
        best = _best(latency_ms, singles)
        without_own = _best(latency_ms, [label for label in singles if label not in OWN_KERNELS])
        found = {"best": latency_ms[best], "without own": latency_ms[without_own]}
        found |= {label: latency_ms[label] for label in OTHERS if label in latency_ms}
        found = {label: latency / latency_ms[mix] for label, latency in found.items()}
        for label, ratio in found.items():
            ratios[label].append(ratio)
        intervals = each.get("ratio_to_mix", {}) if mix == "mix" else {}
        cells = [f"{found[label]:.2f}" if label in found else "–" for label in OTHERS]
        parts = ", ".join(f"{backend} {count}" for backend, count in sorted(each["parts"][mix].items()))
        lines.append(
            f"| {each['network']} | {found['best']:.2f}{_interval(intervals.get(best))} ({best}) "
            f"| {found['without own']:.2f} ({without_own}) | {' | '.join(cells)} | {parts} |"
        )
    means = [f"{statistics.geometric_mean(values):.2f}" if values else "–" for values in ratios.values()]
    lines.append(f"| **geometric mean** | **{means[0]}** | {' | '.join(means[1:])} | |")
    return lines


def _interval(ratio: Sequence[float | None] | None) -> str:
    """Return a paired ratio's interval in brackets; nothing for a program that is the mix itself."""
    return "" if ratio is None else " [{:.2f}, {:.2f}]".format(*(end or float("inf") for end in ratio[1:]))


def _best(latency_ms: dict[str, float], labels: Sequence[str]) -> str:
    return min((label for label in labels if label in latency_ms), key=lambda label: latency_ms[label])


def _room(networks: Sequence[dict[str, Any]], singles: Sequence[str]) -> list[str]:
    """Return how far the best single backend is from products at the machine's peak, network by network."""
    lines = [
        "| network | products, GFLOP | peak, GFLOP/s | at the peak, ms | mix, ms | best single over the peak "
        "| best single over the mix, by sums of parts |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    rooms, gains = [], []
    for each in networks:
        latency_ms = each["latency_ms"]
        least_ms = each["products_gflop"] / each["peak_gflops"] * 1e3
        rooms.append(latency_ms[_best(latency_ms, singles)] / least_ms)
        sums_ms = each["sums_ms"]
        gains.append(sums_ms[_best(sums_ms, singles)] / sums_ms["mix"])
        lines.append(
            f"| {each['network']} | {each['products_gflop']:.2f} | {each['peak_gflops']:.0f} "
            f"| {least_ms:.2f} | {latency_ms['mix']:.2f} | {rooms[-1]:.2f} | {gains[-1]:.2f} |"
        )
    means = [statistics.geometric_mean(ratios) for ratios in (rooms, gains)]
    lines.append(f"| **geometric mean** | | | | | **{means[0]:.2f}** | **{means[1]:.2f}** |")
    return lines

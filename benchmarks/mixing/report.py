"""The tables of measured rows, and for rows without a gain what the search proves of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

GAIN = 1.10
"""The gain over the best single backend that is looked for."""

_NEAR = 1e-6
"""A gap below this share of the sum is printed instead of a bare no."""

RIVALS = ("torch eager", "torch.compile", "onnxruntime alone", "onnxruntime in float32")


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Return the tables as Markdown."""
    lines = [
        "Latencies are medians of executions in turn; a ratio is a latency over the mix's, the median of its "
        "rounds with the 95 % interval: above 1 the mix is faster.",
        "",
        *_ratios(rows),
        "",
        "What the search proves: the cheapest cover of all candidates by their prices, with launches, "
        "against the cheapest of each single backend by the same prices. No mix of these candidates has a "
        "smaller sum than the bound, so that none gains more than the last column says, but for what a sum "
        "of parts leaves out.",
        "",
        *_proofs(rows),
        "",
        *_verdict(rows),
    ]
    refused = [
        f"- `{row['row']}`: {label}: {reason}" for row in rows for label, reason in row["refused"].items()
    ]
    return "\n".join([*lines, *(["", "Not in the table:", "", *refused] if refused else [])])


def best_single(row: dict[str, Any]) -> tuple[str, tuple[float, float, float | None]]:
    """Return the fastest single backend and its ratio to the mix."""
    ratios = {
        label: row["ratio_to_mix"][name] for label, name in row["same_program"].items() if label != "mix"
    }
    label = min(ratios, key=lambda each: (ratios[each][0], each))
    return label, ratios[label]


def most_by_sums(row: dict[str, Any]) -> float:
    """Return how many times cheaper than the cheapest single backend any mix could be, by sums of prices."""
    least: float = min(row["sums_ms"].values())
    return least / float(row["bound_ms"])


def _ratios(rows: Sequence[dict[str, Any]]) -> list[str]:
    rivals = [label for label in RIVALS if any(label in row["latency_ms"] for row in rows)]
    lines = [
        f"| row | mix, ms | best single backend | {' | '.join(rivals)} | chosen by | parts |",
        f"|---|--:|--:|{'--:|' * len(rivals)}---|---|",
    ]
    for row in rows:
        label, ratio = best_single(row)
        cells = [_cell(row["ratio_to_mix"][each]) if each in row["ratio_to_mix"] else "–" for each in rivals]
        parts = ", ".join(f"{backend} {count}" for backend, count in sorted(row["parts"].items()))
        lines.append(
            f"| {row['row']} | {row['latency_ms']['mix']:.2f} | {_cell(ratio)} ({label}) "
            f"| {' | '.join(cells)} | {row['chosen_by']}{', a tie' * row['tie']} | {parts} |"
        )
    return lines


def _cell(ratio: Sequence[float | None]) -> str:
    middle, low, high = ratio
    if middle == low == high:
        return f"{middle:.2f}"
    return f"{middle:.2f} [{low:.2f}, {'∞' if high is None else f'{high:.2f}'}]"


def _proofs(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "| row | candidates | states | cheapest cover, ms | bound, ms | proven | cheapest single backend, ms "
        "| at most |",
        "|---|--:|--:|--:|--:|---|--:|--:|",
    ]
    for row in rows:
        label = min(row["sums_ms"], key=lambda each: row["sums_ms"][each])
        lines.append(
            f"| {row['row']} | {row['candidates']} | {row['states']} | {row['sum_ms']:.2f} "
            f"| {row['bound_ms']:.2f} | {_proof(row)} "
            f"| {row['sums_ms'][label]:.2f} ({label}) | {most_by_sums(row):.2f} |"
        )
    return lines


def _proof(row: dict[str, Any]) -> str:
    """Say how a row's cheapest cover is proven; a bound in floating point is no proof, however near."""
    if row["proven"]:
        return "yes"
    gap = 1 - row["bound_ms"] / row["sum_ms"]
    return "no, within 0.0001 %" if gap < _NEAR else "no"


def _verdict(rows: Sequence[dict[str, Any]]) -> list[str]:
    gained = [row["row"] for row in rows if best_single(row)[1][0] >= GAIN]
    excused = [
        row["row"] for row in rows if row["row"] not in gained and row["proven"] and most_by_sums(row) < GAIN
    ]
    lost = [row["row"] for row in rows if _is_slower(row)]
    return [
        f"- At least {GAIN:.2f} times as fast as the best single backend: {len(gained)} of {len(rows)} rows"
        f"{_named(gained)}.",
        "- Of the others, rows in which no mix could be, by the search's proof: "
        f"{len(excused)}{_named(excused)}.",
        "- Slower than the best single backend or onnxruntime beyond the interval: "
        f"{len(lost)}{_named(lost)}.",
    ]


def _is_slower(row: dict[str, Any]) -> bool:
    """Say whether a single backend or onnxruntime is faster than the mix, with its whole interval below 1."""
    ratios = [best_single(row)[1], row["ratio_to_mix"].get("onnxruntime alone")]
    return any(ratio is not None and ratio[2] is not None and ratio[2] < 1 for ratio in ratios)


def _named(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""

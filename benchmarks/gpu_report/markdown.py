"""The report as Markdown: a section for each step, with what failed said where its figures would stand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Found = Mapping[str, Mapping[str, Any]]


def report(configuration: Mapping[str, str], found: Found) -> str:
    """Return the report of all steps, those that failed included."""
    lines = [f"# What was measured on {configuration['device']}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in configuration.items()]
    lines += [
        "",
        "Medians of executions in turn, after warm-up, on random inputs, the second-level cache overwritten "
        "before each; quartiles in brackets. Clocks and temperature are as they were found.",
        "",
    ]
    for name, title, body in (
        ("ceilings", "What the device reaches at best", _ceilings),
        ("launches", "What one more kernel costs", _launches),
        ("training", "One block in training", _training),
        ("hops", "A boundary tensor to the host and back", _hops),
        ("schedules", "Pipelines of such blocks", _schedules),
        ("ranks", "Two ranks on one device", _ranks),
        ("calibration", "The cost model after a sweep of chosen products", _calibration),
    ):
        if name in found:
            lines += [f"## {title}", "", *_section(found[name], body), ""]
    networks = {name: each for name, each in found.items() if name.startswith("network-")}
    if networks:
        lines += ["## Networks", "", *_networks(networks), ""]
    failures = [f"- `{name}`: {each['failure']}" for name, each in found.items() if "failure" in each]
    lines += ["## What did not run", "", *(failures or ["Everything ran."]), ""]
    return "\n".join(lines)


def _section(outcome: Mapping[str, Any], body: Any) -> list[str]:
    if "failure" in outcome:
        return [f"No figures: {outcome['failure']}."]
    return [*body(outcome["result"]), *_state(outcome["result"])]


def _ceilings(result: Mapping[str, Any]) -> list[str]:
    rows = [[f"product, {label}", f"{rate:.3g} TFLOP/s"] for label, rate in result["tflops"].items()]
    return _table(["", "rate"], [*rows, ["copy, bytes read and written", f"{result['copy_gb_s']:.3g} GB/s"]])


def _launches(result: Mapping[str, Any]) -> list[str]:
    rows = [[label, f"{value:.2f} us"] for label, value in result["per_kernel_us"].items()]
    return _table(["launched", "each kernel"], rows)


def _training(result: Mapping[str, Any]) -> list[str]:
    names = ("forward", "backward", "backward_input", "backward_weight")
    rows = [
        [
            dtype,
            *(_latency(each["latency_us"][name]) for name in names),
            f"{each['saved_bytes'] / 2**20:.3g}",
            f"{each['peak_bytes'] / 2**20:.3g}",
        ]
        for dtype, each in result.items()
    ]
    return _table(["type", *(f"{name}, us" for name in names), "saved, MiB", "peak, MiB"], rows)


def _hops(result: Mapping[str, Any]) -> list[str]:
    return [
        f"{result['bytes'] / 2**20:.3g} MiB take {_latency(result['latency_us']['round trip'])} us, "
        f"{result['gb_s']:.3g} GB/s."
    ]


def _schedules(result: Mapping[str, Any]) -> list[str]:
    rows = []
    for devices, each in result.items():
        best = each["best"]
        one_f_one_b = next((row for row in each["baselines"] if row["name"] == "1f1b"), None)
        step_ms = None if one_f_one_b is None else one_f_one_b["step_ms"]
        ratio = "–" if step_ms is None else f"{step_ms / best['step_ms']:.3f}"
        bound = f"{best['lower_bound_ms']:.3f}"
        rows.append([devices, best["placement"], f"{best['step_ms']:.3f}", bound, ratio])
    return _table(["devices", "placement", "step, ms", "lower bound, ms", "1F1B over it"], rows)


def _ranks(result: Mapping[str, Any]) -> list[str]:
    return [
        f"Largest gradient error {result['max_gradient_error']:.1e}, loss error {result['loss_error']:.1e}; "
        f"searched {result['searched']['real_ms']:.2f} ms, 1F1B {result['1f1b']['real_ms']:.2f} ms."
    ]


def _calibration(result: Mapping[str, Any]) -> list[str]:
    before, after = (result["mean_error"][name] for name in ("as shipped", "after the sweep"))
    return [
        f"{len(result['swept'])} products in bfloat16 were measured. By the data sheet of {result['sheet']}, "
        f"{len(result['held'])} others are predicted {before:.1%} off as shipped, {after:.1%} afterwards."
    ]


def _networks(found: Found) -> list[str]:
    rows: list[list[str]] = []
    notes, states = [], {}
    for name, outcome in found.items():
        if "failure" in outcome:
            notes.append(f"- {name.removeprefix('network-')} did not run: {outcome['failure']}")
            continue
        result = outcome["result"]
        states[name.removeprefix("network-")] = result
        for label, latency in result["latency_us"].items():
            shares = [result[of].get(label) for of in ("share_of_ceiling", "share_of_copy")]
            shown = ["–" if share is None else f"{share:.1%}" for share in shares]
            error = f"{result['errors'][label]:.1e}"
            rows.append([name.removeprefix("network-"), label, _latency(latency), *shown, error])
        if "parts" in result:
            notes.append(f"- {name.removeprefix('network-')}, tuner: {_choice(result)}")
        notes += [
            f"- {name.removeprefix('network-')}, {label}: {reason}"
            for label, reason in result["notes"].items()
        ]
    columns = ["network", "program", "latency, us"]
    columns += ["of the product's ceiling", "of the copy's, by its least traffic", "error against eager"]
    return [*_table(columns, rows), *_state(states), "", *notes]


def _choice(result: Mapping[str, Any]) -> str:
    """Return who runs how many parts of a network, and what the tuner measured of each backend alone."""
    parts = ", ".join(f"{backend} {count}" for backend, count in sorted(result["parts"].items()))
    alone = ", ".join(
        f"{backend} {latency_us:.1f}" for backend, latency_us in sorted(result["single_backends_us"].items())
    )
    return (
        f"parts of {parts}; whole programs, as it measured them, us: {alone or 'none'}; each launch costs "
        f"{result['launch_penalty_us']:.2f} us more; {result['new_measurements']} measurements"
    )


def _state(result: Mapping[str, Any]) -> list[str]:
    """Return what the device's clocks and temperature were, of each part where a step timed several."""
    timed = [("", result)] if "state" in result else [(f", {name}", each) for name, each in result.items()]
    lines = [
        f"Device before → after{name}: {_changes(each['state'])}."
        for name, each in timed
        if isinstance(each, Mapping) and each.get("state", {}).get("before")
    ]
    return ["", *lines] if lines else []


def _changes(state: Mapping[str, Mapping[str, float]]) -> str:
    before, after = state["before"], state["after"]
    return ", ".join(f"{name} {value:g} → {after.get(name, math.nan):g}" for name, value in before.items())


def _latency(each: Mapping[str, float]) -> str:
    return f"{each['median']:.1f} [{each['low']:.1f}, {each['high']:.1f}]"


def _table(columns: list[str], rows: list[list[str]]) -> list[str]:
    return [
        f"| {' | '.join(columns)} |",
        f"|{'---|' * len(columns)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]

"""Schedules that Primus measured are simulated as they were kept, and ordered as published."""

from __future__ import annotations

import pytest

from benchmarks.published.primus import RUNS, load_rows, pairs_in_order

KEPT = (
    # Throughput over 1F1B's by schedule, in the order of the tables.
    (1.061, 1.102, 1.139, 1.069, 0.930),
    (1.059, 1.066, 1.033, 1.077, 1.047, 0.786),
)


def test_schedules_keep_their_ratios_and_those_of_llama_their_order() -> None:
    runs = [load_rows(*run) for run in RUNS[:2]]
    for rows, kept in zip(runs, KEPT, strict=True):
        assert [row.ours_speed for row in rows[1:]] == pytest.approx(kept, abs=0.002)
    llama = runs[0]
    assert pairs_in_order(llama, beyond=0.01) == (13, 13)
    # Interleaving and ZB-V hold more than 1F1B, V-Half and V-Min less, as published.
    assert all((row.ours_memory > 1) == (row.memory > 1) for row in llama[1:])


def test_pairs_that_are_the_other_way_round_are_counted() -> None:
    llama = load_rows(*RUNS[0][:2], RUNS[0][2][:2])
    assert pairs_in_order(llama) == (1, 1)
    turned = load_rows(*RUNS[0][:2], (("1f1b", 2.0, 1.0), ("interleaved-2", 1.0, 1.0)))
    assert pairs_in_order(turned) == (0, 1)
    assert pairs_in_order(turned, beyond=0.6) == (0, 0)

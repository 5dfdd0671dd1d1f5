"""The planner's benchmark: its profiles, its rows, and what it says of a plan that loses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.planner import tables
from benchmarks.planner.__main__ import PROFILES, profiles_of, read_rows
from benchmarks.planner.cases import Row, run_cases


def test_halves_of_measured_backwards_add_up() -> None:
    profiles = list(profiles_of(PROFILES))
    assert len(profiles) == len({profile.name for profile in profiles}) == 8
    for profile in profiles:
        for cost in profile.tables[0].costs:
            assert cost.backward_input_us is not None
            assert cost.backward_weight_us is not None
            assert cost.backward_us == pytest.approx(cost.backward_input_us + cost.backward_weight_us)
        first, block, head = (profile.tables[0].costs[index] for index in (0, 1, -1))
        assert first.backward_input_us == 0
        # Scores, softmax and dropout have no weights, the head is a product with weights alone, or nearly.
        assert 0.1 < block.backward_weight_us / block.backward_us < 0.4
        assert 0.45 < head.backward_weight_us / head.backward_us <= 0.5


def test_a_run_goes_on_where_it_was_and_tells_of_plans_that_lose(tmp_path: Path) -> None:
    profile = next(profiles_of(PROFILES))

    def run(known: list[Row]) -> list[Row]:
        return list(
            run_cases([profile], devices=[2], shares=[1.02, None], micro_batches=2, work=0.02, known=known)
        )

    limited, free = run([])
    assert limited.memory_bytes is not None
    assert free.memory_bytes is None
    assert limited.step_us >= limited.bound_us > 0
    assert tables.slower([limited, free]) == []
    kept = tmp_path / "rows.jsonl"
    kept.write_bytes(msgspec.json.encode(limited) + b"\n" + msgspec.json.encode(free)[:40])
    known = read_rows(kept)
    assert known == [limited]
    assert [row.key for row in run(known)] == [free.key]
    lost = msgspec.structs.replace(limited, step_us=2 * limited.step_us)
    assert tables.slower([lost, free]) == [lost]
    assert any("over 1F1B" in line for line in tables.means([limited, free]))
    assert len(list(tables.every_row([limited, free]))) == 4

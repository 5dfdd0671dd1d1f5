"""Plans whose figures do not follow from what was measured are refused, whatever was changed in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tuned_model import tuned_model

from tessel.errors import DocumentError
from tessel.loading import load_plan
from tessel.pipeline import build_plan
from tessel.search import SearchBudget


@pytest.fixture(scope="module")
def document() -> str:
    tuned = tuned_model([(100.0, 210.0, 120.0, 110.0)] * 3)
    plan = build_plan(tuned, micro_batches=4, memory_limit_bytes=20_000, budget=SearchBudget(0.1))
    return plan.to_json().decode()


def test_the_plan_itself_loads(document: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(document)
    assert load_plan(tmp_path / "plan.json").to_json().decode() == document


@pytest.mark.parametrize(
    ("keys", "value", "problem"),
    [
        (("step_us",), 1e300, "was measured to take"),
        (("stages", 1, "forward", "latency_us"), 1e8, "stage 1 was measured to take 1e[+]08 us"),
        (("stages", 2, "backward", "latency_us"), 1.0, "block b2 takes"),
        (("stages", 0, "weight_bytes"), -4000, "weight_bytes of stage0 is -4000"),
        (("stages", 0, "weight_bytes"), 4001, "static_bytes are"),
        (("stages", 1, "saved_bytes"), 6000, "block f1 adds 600 bytes"),
        (("static_bytes",), [1, 1, 1], "static_bytes are"),
        (("stage_devices",), [[0], [0], [0]], "block f1 is on devices"),
        (("hop_latency_us",), [5.0, 5e9], "the hop from f1 to f2"),
        (("hop_latency_us",), [5.0], "hop_latency_us has 1 entries"),
        (("optimizer",), "adam", "static_bytes are"),
        (("comparison", 0, "makespan"), 7, "its comparison has 7 steps"),
    ],
)
def test_a_changed_figure_is_refused(
    document: str, tmp_path: Path, keys: tuple[str | int, ...], value: object, problem: str
) -> None:
    changed: Any = json.loads(document)
    inner = changed
    for key in keys[:-1]:
        inner = inner[key]
    assert inner[keys[-1]] != value
    inner[keys[-1]] = value
    (tmp_path / "plan.json").write_text(json.dumps(changed))
    with pytest.raises(DocumentError, match=problem):
        load_plan(tmp_path / "plan.json")

"""Twenty plans stay as they were kept: layouts, proofs, memory, blocks, and every baseline.

PYTHONPATH=.:tests/samples python tests/tessel/jobs/test_goldens.py    writes them anew
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tuned_model import tuned_model

from scripts.main import main
from tessel.pipeline import build_plan

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "samples" / "golden_plans.json"
TABLE = ROOT / "examples" / "profiles" / "eight_layers.csv"

_PLANS = {
    "chain of 4": "--devices 4 --micro-batches 8",
    "chain of 4, 8 GiB": "--devices 4 --micro-batches 8 --memory 8GiB",
    "8 devices, slow links": "--devices 8 --micro-batches 16 --link 5GB/s --hop-us 200",
    "unequal memory": "--devices 2 --micro-batches 8 --device-memory 12GiB,6GiB",
    "unequal speed": "--devices 2 --micro-batches 8 --device-speed 1,0.5",
    "nodes": "--devices 8 --micro-batches 16 --node-devices 4 --node-link 300GB/s --link 10GB/s",
    "zbv": "--devices 2 --micro-batches 8 --placement zbv",
    "interleaved": "--devices 2 --micro-batches 8 --placement interleaved --chunks 2",
    "joint backwards": "--devices 4 --micro-batches 8 --joint-backward --no-recompute",
    "deepspeed": "--devices 4 --micro-batches 8 --runtime deepspeed --optimizer adam-mixed",
    "by hand": "--devices 4 --micro-batches 8 --pipeline 4 --by-hand 0-1,2-3,4-5,6-7",
    "does not fit": "--devices 2 --micro-batches 4 --memory 1GiB",
}
_STAGES = [
    (10.0, 21.0, 12.0, 11.0),
    (14.0, 27.0, 15.0, 13.0),
    (9.0, 19.0, 11.0, 9.0),
    (12.0, 25.0, 13.0, 13.0),
]
_TUNED: Mapping[str, Mapping[str, Any]] = {
    "tuned chain": {"micro_batches": 8},
    "tuned chain, sgd": {"micro_batches": 8, "memory_limit_bytes": 9_300, "optimizer": "sgd"},
    "tuned chain, none": {"micro_batches": 8, "memory_limit_bytes": 9_300, "optimizer": "none"},
    "tuned chain, adam": {"micro_batches": 8, "memory_limit_bytes": 17_400, "optimizer": "adam"},
    "tuned chain, no recomputation": {"micro_batches": 8, "memory_limit_bytes": 9_300, "recompute": False},
    "tuned chain, many": {"micro_batches": 32},
    "tuned chain, momentum": {"micro_batches": 4, "optimizer": "momentum"},
    "tuned chain, one": {"micro_batches": 1},
}
_SLOW = ("tuned chain", "tuned chain, adam", "tuned chain, none", "tuned chain, sgd")


def jobs() -> dict[str, Callable[[], object]]:
    """Return what makes each golden document, by name."""
    planned = {name: _planned(options) for name, options in _PLANS.items()}
    tuned = {name: _tuned(options) for name, options in _TUNED.items()}
    return {**planned, **tuned}


def _planned(options: str) -> Callable[[], object]:
    def make() -> object:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
            saved = Path(folder) / "plan.json"
            main(
                ["plan", str(TABLE), *options.split(), "--work", "0.5", "--json", "--save", str(saved), "-q"]
            )
            found = json.loads(out.getvalue())
            document = json.loads(saved.read_bytes())
        best = {key: found["best"][key] for key in ("stage_devices", "trained_bytes", "not_trained_bytes")}
        baselines = [[each["name"], each["step_ms"], each["fits"]] for each in found["baselines"]]
        kept = ("layout", "order", "step_us", "training_step_us", "lower_bound_us", "static_bytes")
        kept = (*kept, "memory_bytes")
        return _rounded({**best, "baselines": baselines, **{key: document[key] for key in kept}})

    return make


def _tuned(options: Mapping[str, Any]) -> Callable[[], object]:
    def make() -> object:
        given = {"memory_limit_bytes": None, **options}
        plan = build_plan(tuned_model(_STAGES), **given)
        document = json.loads(plan.to_json())
        rows = [[row["schedule"], row["makespan"], row["fits"]] for row in document["comparison"]]
        blocks = [
            [block["name"], block["span"], block["memory"]] for block in document["placement"]["blocks"]
        ]
        recomputes = [stage["recomputes"] for stage in document["stages"]]
        schedule = document["schedule"]
        figures = {key: schedule[key] for key in ("makespan", "lower_bound", "optimal", "peak_memory")}
        own = {"blocks": blocks, "baselines": rows, "recomputes": recomputes}
        return _rounded({"static_bytes": document["static_bytes"], **own, **figures})

    return make


def _rounded(value: Any) -> Any:
    """Return a document whose fractions have ten digits: the last ones are the processor's own."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value


def text_of(documents: Mapping[str, object]) -> str:
    """Return the documents as text, a line a figure of each."""
    lines = [
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(document.items()))
        + "\n}"
        for name, document in documents.items()
        if isinstance(document, Mapping)
    ]
    return "{" + ",\n".join(lines) + "}\n"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in _SLOW else ()) for name in jobs()]
)
def test_a_plan_is_the_one_that_was_kept(name: str) -> None:
    assert jobs()[name]() == json.loads(GOLDEN.read_text())[name]


def test_all_that_was_kept_is_made() -> None:
    assert set(json.loads(GOLDEN.read_text())) == set(jobs())


if __name__ == "__main__":
    GOLDEN.write_text(text_of({name: make() for name, make in jobs().items()}))

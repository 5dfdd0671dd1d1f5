"""`tessel run` ends with status 1 where real ranks compute what the reference does not, and says where."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from shared_modules import PYTHONPATH

pytest.importorskip("torch")

from planned_models import ENCODER_DECODER
from random_schedules import draw_schedule
from saved_plans import save_planned

from tessel.documents import save_document
from tessel.shapes import make_shape

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_planned(ENCODER_DECODER, "decoder.0", tmp_path_factory.mktemp("plan") / "plan.json")


@dataclass(frozen=True)
class Case:
    """A fault, the tensor that must be named, and what must be said of it."""

    fault: dict[str, object]
    place: str
    said: str
    options: tuple[str, ...] = ()


WRONG = {
    "a loss is NaN": Case(
        {"place": "loss", "kind": "NaN", "stage": 1, "micro_batch": 1},
        "the loss of micro-batch 1 (stage 1, ours)",
        "is NaN in 1 of 1 values, where the reference is finite",
    ),
    "a gradient is NaN": Case(
        {"place": "gradient", "kind": "NaN", "stage": 0, "weight": "linear.bias"},
        "the gradient of linear.bias (stage 0, ours)",
        "is NaN in 8 of 8 values, where the reference is finite",
        ("--json",),
    ),
    "a gradient is doubled": Case(
        {"place": "gradient", "kind": "doubled", "stage": 1, "weight": "linear.weight"},
        "the gradient of linear.weight (stages 0 + 1, ours)",
        "of its largest value, more than the tolerance 1e-03",
        ("--json",),
    ),
    "a gradient is missing": Case(
        {"place": "gradient", "kind": "missing", "stage": 0, "weight": "linear.bias"},
        "the gradient of linear.bias (stage",
        "of its largest value, more than the tolerance",
    ),
    "gradients go back of another sign": Case(
        {"place": "returned", "kind": "other sign", "stage": 1},
        "the gradient of linear.weight (stages 0 + 1, ours)",
        "of its largest value, more than the tolerance",
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if index < 1 else [pytest.mark.slow], id=name)
        for index, name in enumerate(WRONG)
    ],
)
def test_wrong_results_of_real_ranks_end_with_status_1_and_name_the_tensor(
    name: str, tessel: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run ended with status 0 whatever its errors; NaN was no error, or a bare exception."""
    case = WRONG[name]
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("FAULT", json.dumps(case.fault))
    path = tmp_path / "v.json"
    save_document(path, draw_schedule(make_shape("vshape", 2), 2, np.random.default_rng(0)).to_json())
    wanted = ("--stages", "faulty_stages:stages", "--repeats", 1, "--overheads", "none")
    done = tessel("run", path, *wanted, *case.options)
    said = " ".join(done.stderr.split())
    assert done.status == 1
    assert "the results are not those of faulty_stages:reference" in said
    assert case.place in said
    assert case.said in said
    assert "Traceback" not in said
    if case.options:
        report = json.loads(done.stdout)
        assert report["is_right"] is False
        assert report["searched"]["real_ms"] > 0
        assert report["failures"][0]["tensor"] == case.fault["weight"]
        assert report["worst_gradient"] == report["failures"][0]
        assert (report["max_gradient_error"] is None) == (case.fault["kind"] == "NaN")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "place"),
    [
        (None, ""),
        ({"place": "sent", "kind": "stale", "stage": 0}, "the loss of micro-batch 1 (stage 1, ours)"),
        (
            {"place": "gradient", "kind": "NaN", "stage": 0, "weight": "encoder.weight"},
            "the gradient of encoder.weight (stage 0, ours) is NaN",
        ),
    ],
    ids=["right", "stale", "NaN"],
)
def test_compiled_stages_of_real_ranks_are_checked_alike(
    fault: dict[str, object] | None,
    place: str,
    plan: Path,
    tessel: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("FAULTY_PLAN", str(plan))
    if fault is not None:
        monkeypatch.setenv("FAULT", json.dumps(fault))
    done = tessel("run", plan, "--stages", "faulty_stages:stages", "--repeats", 1, "--overheads", "none")
    assert done.status == (0 if fault is None else 1), done.stderr
    assert place in " ".join(done.stderr.split())


NON_FINITE = {
    "right": (None, ""),
    "right inference": (None, ""),
    "loss": (
        {"place": "loss", "kind": "NaN", "stage": 1, "micro_batch": 1},
        "the loss of micro-batch 1 (stage 1, ours) is NaN in 1 of 1 values",
    ),
    "gradient": (
        {"place": "gradient", "kind": "one negative infinity", "stage": 0, "weight": "linear.bias"},
        "the gradient of linear.bias (stage 0, ours) is negative infinity in 1 of 8 values",
    ),
    "what is handed on": (
        {"place": "sent", "kind": "NaN", "stage": 0, "micro_batch": 0},
        "the loss of micro-batch 0 (stage 1, ours) is NaN in 1 of 1 values",
    ),
    "output of inference": (
        {"place": "output", "kind": "infinity", "stage": 1, "micro_batch": 1},
        "the output h2 of micro-batch 1 (stage 1, ours) is infinity in 32 of 32 values",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    NON_FINITE,
)
def test_what_is_not_finite_is_wrong_without_a_reference(
    name: str, tessel: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault, said = NON_FINITE[name]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{PYTHONPATH}")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "unreferenced_stages.py").write_text("from faulty_stages import stages as stages\n")
    if fault is not None:
        monkeypatch.setenv("FAULT", json.dumps(fault))
    path = tmp_path / "v.json"
    placement = make_shape("vshape", 2, infer="inference" in name)
    save_document(path, draw_schedule(placement, 2, np.random.default_rng(0)).to_json())
    wanted = ("--stages", "unreferenced_stages:stages", "--repeats", 1, "--overheads", "none", "--json")
    done = tessel("run", path, *wanted)
    report = json.loads(done.stdout)
    assert report["reference"] is None
    if fault is None:
        assert done.status == 0, done.stderr
        assert (report["is_right"], report["failures"]) == (None, [])
        kinds = ("outputs",) if "inference" in name else ("gradients", "losses")
        assert all(report["checked"][kind] > 0 for kind in kinds)
        return
    assert done.status == 1
    assert report["is_right"] is False
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr

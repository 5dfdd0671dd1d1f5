"""A folder that somebody changed is refused or predicts; it never ends the process."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changed_forests import small_model
from shared_modules import PYTHONPATH, ROOT

from cost_model.errors import CostModelFileError
from cost_model.forests.forest_files import checked_forest
from cost_model.kernel_model import load_kernel_model

SCRIPT = ROOT / "tests" / "harness" / "changed_forests.py"


def open_changed(first: int, count: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(first), str(count)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_changed_folders_are_read_or_refused() -> None:
    ended = open_changed(0, 60)
    assert sum(ended.values()) == 60
    assert ended["refused"] > 30


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 6000, 500))
def test_many_changed_folders_are_read_or_refused(first: int) -> None:
    assert sum(open_changed(first, 500).values()) == 500


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    model, _ = small_model()
    return {"raw": json.loads(bytes(model.mean.save_raw("json"))), "features": model.mean.num_features()}


def trees_of(raw: dict[str, Any]) -> list[dict[str, Any]]:
    return raw["learner"]["gradient_booster"]["model"]["trees"]


def set_child(raw: dict[str, Any]) -> None:
    trees_of(raw)[0]["left_children"][0] = 10**6


def make_cycle(raw: dict[str, Any]) -> None:
    tree = trees_of(raw)[0]
    child = tree["left_children"][0]
    tree["left_children"][child] = tree["right_children"][child] = 0


def set_feature(raw: dict[str, Any]) -> None:
    trees_of(raw)[1]["split_indices"][0] = 100_000


def set_threshold(raw: dict[str, Any]) -> None:
    trees_of(raw)[1]["split_conditions"][0] = 1e300


def set_leaf(raw: dict[str, Any]) -> None:
    tree = trees_of(raw)[1]
    tree["split_conditions"][tree["left_children"].index(-1)] = 1e20


def set_sizes(raw: dict[str, Any]) -> None:
    trees_of(raw)[0]["tree_param"]["num_nodes"] = "4000000000"


def set_category(raw: dict[str, Any]) -> None:
    trees_of(raw)[0]["split_type"][0] = 1


def set_booster(raw: dict[str, Any]) -> None:
    raw["learner"]["gradient_booster"]["name"] = "dart"


def set_objective(raw: dict[str, Any]) -> None:
    raw["learner"]["objective"] = {"name": "rank:ndcg"}


def set_version(raw: dict[str, Any]) -> None:
    raw["version"] = [99, 0, 0]


def set_counts(raw: dict[str, Any]) -> None:
    raw["learner"]["gradient_booster"]["model"]["iteration_indptr"][-1] = 10**9


CHANGES: dict[Callable[[dict[str, Any]], None], str] = {
    set_child: "tree 0: its nodes are not each the child of one other",
    make_cycle: "tree 0: ",
    set_feature: "tree 1: it asks for a feature beyond",
    set_threshold: "tree 1: a value is beyond what XGBoost keeps",
    set_leaf: "tree 1: a leaf is larger than 10000",
    set_sizes: "tree 0: its parameters do not fit its nodes",
    set_category: "tree 0: its parameters do not fit its nodes",
    set_booster: "its booster is 'dart'",
    set_objective: "its objective is 'rank:ndcg'",
    set_version: "written by XGBoost 99.0.0",
    set_counts: "its counts do not fit",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_wrong_with_a_forest_is_said(
    document: dict[str, Any], change: Callable[[dict[str, Any]], None]
) -> None:
    raw = json.loads(json.dumps(document["raw"]))
    change(raw)
    with pytest.raises(ValueError, match=CHANGES[change]):
        checked_forest(json.dumps(raw).encode(), num_features=document["features"], xgboost_version="3.2.0")


def test_a_forest_that_is_not_the_manifests_is_refused_in_one_line(tmp_path: Path) -> None:
    model, queries = small_model()
    model.save(tmp_path)
    assert load_kernel_model(tmp_path).predict(queries) == model.predict(queries)
    digests = json.loads((tmp_path / "manifest.json").read_bytes())["digests"]
    content = (tmp_path / "mean.json").read_bytes()
    assert digests["mean"] == hashlib.blake2b(content, digest_size=16).hexdigest()
    (tmp_path / "mean.json").write_bytes(content + b" ")
    with pytest.raises(CostModelFileError, match=r"is not the forest that its manifest names.*train both"):
        load_kernel_model(tmp_path)


def test_a_folder_of_an_earlier_version_is_refused_by_name(tmp_path: Path) -> None:
    model, _ = small_model()
    model.save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 2}))
    with pytest.raises(CostModelFileError, match="schema_version 2, this installation reads 5; train"):
        load_kernel_model(tmp_path)

"""`tessel schedule --frontier --save x.html`: a page whose sliders have a schedule at every stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_a_frontier_is_saved_as_a_page_of_its_schedules(tessel: Callable[..., Any], tmp_path: Path) -> None:
    page = tmp_path / "frontier.html"
    asked = ("schedule", "vshape", "--devices", 2, "--micro-batches", 4, "--frontier", "--work", "0.5")
    found = json.loads(tessel(*asked, "--save", page, "--json").stdout)["frontier"]

    text = page.read_text().split('<script id="data" type="application/json">')[1].split("</script>")[0]
    data = json.loads(text)
    assert {each["micro_batches"] for each in data["variants"]} == {1, 2, 4}
    offered = [(each["memory"], each["makespan"]) for each in data["variants"] if each["micro_batches"] == 4]
    assert offered == [(each["memory"][0], each["makespan"]) for each in found]
    for each in data["variants"]:
        schedule = data["schedules"][each["schedule"]]
        assert schedule["makespan"] == each["makespan"]
        assert max(schedule["peak_memory"]) <= each["memory"]


def test_a_frontier_of_periods_has_no_schedules_for_a_page(
    tessel: Callable[..., Any], tmp_path: Path
) -> None:
    outcome = tessel("schedule", "vshape", "--devices", 2, "--frontier", "--save", tmp_path / "frontier.html")
    assert outcome.status == 2
    assert ".svg" in outcome.stderr

"""Bad input gets one clear line and the right status, and leaves nothing behind."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GOOD: dict[str, Any] = {
    "schema_version": 1,
    "devices": 2,
    "blocks": [
        {"name": "f0", "kind": "forward", "devices": [0], "span": 1, "memory": 1},
        {"name": "f1", "kind": "forward", "devices": [1], "span": 1, "memory": 1},
        {"name": "b1", "kind": "backward", "devices": [1], "span": 3, "memory": -1},
        {"name": "b0", "kind": "backward", "devices": [0], "span": 3, "memory": -1},
    ],
    "edges": [
        {"source": "f0", "target": "f1", "lag": 0},
        {"source": "f1", "target": "b1", "lag": 0},
        {"source": "b1", "target": "b0", "lag": 0},
    ],
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**GOOD, **changes}


def block(**changes: Any) -> dict[str, Any]:
    return changed(blocks=[{**GOOD["blocks"][0], **changes}, *GOOD["blocks"][1:]])


def edge(**changes: Any) -> dict[str, Any]:
    return changed(edges=[{**GOOD["edges"][0], **changes}, *GOOD["edges"][1:]])


BAD_PLACEMENTS: dict[str, tuple[object, str]] = {
    "empty file": ("", "placement.json"),
    "not JSON": ("{", "placement.json"),
    "truncated": (json.dumps(GOOD)[:-40], "placement.json"),
    "a list": ([], "object"),
    "no blocks": (changed(blocks=[], edges=[]), "block"),
    "unknown key": (changed(surprise=1), "surprise"),
    "unknown key of a block": (block(color="red"), "color"),
    "newer version": (changed(schema_version=99), "99"),
    "devices missing": ({k: v for k, v in GOOD.items() if k != "devices"}, "devices"),
    "zero devices": (changed(devices=0), "0"),
    "devices as text": (changed(devices="two"), "devices"),
    "unknown device": (block(devices=[7]), "7"),
    "negative device": (block(devices=[-1]), "-1"),
    "no device": (block(devices=[]), "device"),
    "device named twice": (block(devices=[0, 0]), "device"),
    "negative span": (block(span=-1), "-1"),
    "span as fraction": (block(span=1.5), "span"),
    "memory as text": (block(memory="much"), "memory"),
    "unknown kind": (block(kind="sideways"), "sideways"),
    "two blocks of one name": (block(name="f1"), "f1"),
    "edge to nowhere": (edge(target="f9"), "f9"),
    "negative lag": (edge(lag=-2), "-2"),
    "edge to itself": (edge(target="f0"), "f0"),
    "cycle": (
        changed(edges=[*GOOD["edges"], {"source": "b0", "target": "f0", "lag": 0}]),
        "cycle",
    ),
    "choice of an unknown block": (changed(choices=[{"name": "c", "options": [["b0"], ["zz"]]}]), "zz"),
}


@pytest.mark.parametrize("case", BAD_PLACEMENTS)
def test_bad_placement_is_refused_in_one_line(tessel: Callable[..., Any], tmp_path: Path, case: str) -> None:
    document, mentioned = BAD_PLACEMENTS[case]
    path = tmp_path / "placement.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))

    outcome = tessel("schedule", path, "--save", tmp_path / "out.json")

    assert outcome.status in (1, 2), outcome
    assert_one_line(outcome.stderr)
    assert mentioned in outcome.stderr
    assert outcome.stdout == ""
    assert sorted(tmp_path.iterdir()) == [path]


BAD_ARGUMENTS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "missing file": (("schedule", "nowhere.json"), 2, "nowhere.json"),
    "folder for a file": (("schedule", "."), 2, "."),
    "unknown shape": (("schedule", "wshape", "--devices", "4"), 2, "vshape"),
    "no devices": (("schedule", "vshape"), 2, "--devices"),
    "devices zero": (("schedule", "vshape", "--devices", "0"), 2, "0"),
    "devices negative": (("schedule", "vshape", "--devices", "-3"), 2, "-3"),
    "devices as text": (("schedule", "vshape", "--devices", "four"), 2, "four"),
    "micro-batches zero": (("schedule", "vshape", "--devices", "2", "--micro-batches", "0"), 2, "0"),
    "memory as text": (("schedule", "vshape", "--devices", "2", "--memory", "lots"), 2, "lots"),
    "micro-batches beyond any": (
        ("schedule", "vshape", "--devices", "4", "--micro-batches", "99999999999"),
        2,
        "99999999999",
    ),
    "devices beyond any": (("schedule", "vshape", "--devices", "99999999"), 2, "99999999"),
    "a check of micro-batches beyond any": (
        ("check", "Et|tL", "--devices", "2", "--micro-batches", "99999999999"),
        2,
        "99999999999",
    ),
    "micro-batches that tuning has not": (
        ("tune", "gpt2:tiny", "--micro-batches", "99999999999"),
        2,
        "99999999999",
    ),
    "too many limits": (("schedule", "vshape", "--devices", "2", "--memory", "1,2,3"), 2, "3"),
    "negative limit": (("schedule", "vshape", "--devices", "2", "--memory=-1"), 2, "-1"),
    "limit too small": (("schedule", "vshape", "--devices", "2", "--memory", "0"), 1, "device 0"),
    "no such time": (("schedule", "vshape", "--devices", "2", "--time-limit", "soon"), 2, "soon"),
    "time zero": (("schedule", "vshape", "--devices", "2", "--time-limit", "0s"), 2, "0s"),
    "option of a shape with a file": (("schedule", "x.json", "--devices", "2"), 2, "--devices"),
    "too few devices for a shape": (("schedule", "kshape", "--devices", "1"), 2, "1"),
    "unknown option": (("schedule", "vshape", "--speed", "9"), 2, "--speed"),
    "unknown command": (("scedule", "vshape"), 2, "scedule"),
    "folder that is missing": (
        ("schedule", "vshape", "--devices", "2", "--save", "no/s.json"),
        2,
        "mkdir -p no",
    ),
    "picture in a folder that is missing": (("draw", "nowhere.json", "--out", "no/x.svg"), 2, "mkdir -p no"),
    "draw over the file": (("draw", "x.json", "--out", "./x.json"), 2, "another"),
    "compare nothing": (("compare", "nowhere.json"), 2, "nowhere.json"),
    "draw to an unknown format": (("draw", "nowhere.json", "--out", "x.gif"), 2, ".gif"),
    "draw nothing": (("draw", "nowhere.json", "--out", "x.svg"), 2, "nowhere.json"),
    "run nothing": (("run", "nowhere.json"), 2, "nowhere.json"),
    "run no times": (("run", "nowhere.json", "--repeats", "0"), 2, "0"),
    "unknown optimizer": (("tune", "gpt2:tiny", "--optimizer", "magic"), 2, "magic"),
    "tune on no device": (("tune", "gpt2:tiny", "--devices", "0"), 2, "0"),
    "memory without a unit": (("tune", "gpt2:tiny", "--memory", "huge"), 2, "huge"),
    "negative hop": (("tune", "gpt2:tiny", "--hop-us=-5"), 2, "-5"),
    "stages without cuts": (("stages", "gpt2:tiny"), 2, "--cut"),
    "records in no database": (("records", "stats", "--records", "mysql://x"), 2, "mysql"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_are_refused_in_one_line(
    tessel: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, status, mentioned = BAD_ARGUMENTS[case]

    outcome = tessel(*arguments)

    assert outcome.status == status, outcome
    assert_one_line(outcome.stderr)
    assert mentioned in outcome.stderr
    assert outcome.stdout == ""
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("arguments", "status", "mentioned"),
    [
        (("gpt3",), 2, "gpt2"),
        (("gpt2:huge",), 2, "huge"),
        (("gpt2:tiny", "--target", "abacus"), 2, "abacus"),
        (("gpt2:tiny", "--backends", "tvm,abacus"), 2, "blas"),
        (("gpt2:tiny", "--threads", "0"), 2, "0"),
        (("gpt2:tiny", "--shape", "input_ids"), 2, "input_ids"),
        (("nowhere.onnx",), 2, "nowhere.onnx"),
    ],
)
def test_bad_models_and_targets_are_named(
    tessel: Callable[..., Any], tmp_path: Path, arguments: tuple[str, ...], status: int, mentioned: str
) -> None:
    outcome = tessel("partition", *arguments, "--records", f"sqlite:///{tmp_path}/records.db")
    assert outcome.status == status, outcome
    assert_one_line(outcome.stderr)
    assert mentioned in outcome.stderr


def test_unwritable_folder_is_refused_before_anything_is_measured(
    tessel: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    outcome = tessel("tune", "gpt2:tiny", "--out", tmp_path / "file" / "out")
    assert outcome.status == 2
    assert "--out" in outcome.stderr
    assert_one_line(outcome.stderr)


def assert_one_line(text: str) -> None:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("tessel: ")
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (("export", "{}", "--to", "torch"), "a plan or a schedule"),
        (("draw", "{}"), "a plan or a schedule"),
        (("check", "{}"), "a schedule, a plan or a CSV of orders"),
        (("schedule", "{}", "--micro-batches", "2"), "a placement"),
        (("plan", "{}", "--devices", "2"), "a profile"),
        (("partition", "{}"), "a model"),
        (("records", "import", "{}", "--records", "{}.new"), "a file of records"),
    ],
)
def test_commands_name_a_program_and_a_database(
    command: tuple[str, ...], wanted: str, tessel: Callable[..., Any], tmp_path: Path
) -> None:
    program, database = tmp_path / "net.tessel", tmp_path / "records.db"
    program.write_bytes(b"tessel program\r\n" + bytes(range(256)))
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE some (number)")
    for file, what in ((program, "a compiled program"), (database, "a database")):
        done = tessel(*(each.format(file) for each in command))
        assert done.status == 2
        assert done.stderr.startswith(f"tessel: {file} is {what}, and {wanted} is wanted; ")

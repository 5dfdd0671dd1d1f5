"""The JSON Schemas of docs/schemas/: as the types are, one for every command, and held by files.

What commands print is held against them wherever a test prints it (conftest.py).
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import kernel_physics
import msgspec
import pytest
import typer
from document_schemas import FOLDER, check_document, check_printed, validator
from jsonschema import ValidationError
from tuned_model import tuned_model

from cost_model.dataset import load_dataset
from cost_model.kernel_training import train_kernel_model
from records.files.exchange import encode_line
from scripts.app import app
from scripts.documents.schemas import FILES, PRINTED
from tessel.handwritten import HANDWRITTEN
from tessel.pipeline import build_plan
from tessel.shapes import kshape, vshape

ROOT = FOLDER.parent.parent
SAMPLE = ROOT / "tests" / "cost_model" / "kernels_amd-epyc.jsonl"


@pytest.mark.torch
@pytest.mark.tvm
def test_schemas_are_what_the_types_are(capsys: pytest.CaptureFixture[str]) -> None:
    written = runpy.run_path(str(ROOT / ".ci" / "write_schemas.py"))
    assert (written["main"](check=True), capsys.readouterr().out) == (0, "")


def test_every_command_with_json_has_a_schema() -> None:
    found = set()
    waiting = [("", typer.main.get_command(app))]
    while waiting:
        path, command = waiting.pop()
        children = getattr(command, "commands", {})
        waiting += [(f"{path} {name}".strip(), child) for name, child in children.items()]
        if any("--json" in parameter.opts for parameter in command.params):
            found.add(path)
    assert found == set(PRINTED)
    assert {path.name.removesuffix(".schema.json") for path in FOLDER.iterdir()} == set(FILES) | {
        f"tessel-{command.replace(' ', '-')}" for command in PRINTED
    }


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".schema.json") for path in FOLDER.iterdir()))
def test_schemas_are_valid_and_say_what_they_are_of(name: str) -> None:
    schema = validator(name).schema
    assert schema["title"] in (name, f"{name.replace('tessel-', 'tessel ', 1).replace('-', ' ')} --json") or (
        schema["title"].replace(" ", "-") == f"{name}---json"
    )
    assert {"$ref", "anyOf"} & schema.keys()


def test_written_files_are_as_their_schemas_say(tmp_path: Path) -> None:
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    for placement in (vshape(3, choose_backward=True, lag=1), kshape(2)):
        check_document("placement", placement.to_json())
        check_document("schedule", rule.build(placement, micro_batches=3, memory=None).to_json())
    stages = [(10.0, 21.0, 11.0, 12.0), (13.0, 27.0, 14.0, 15.0)]
    plan = build_plan(tuned_model(stages), micro_batches=2, memory_limit_bytes=None, time_limit_s=0.5)
    check_document("plan", plan.to_json())
    records = kernel_physics.many_records(45)
    for record in records:
        check_document("record", encode_line(record))
    for line in SAMPLE.read_bytes().splitlines():
        check_document("record", line)
    manifest = train_kernel_model(load_dataset(records), seed=0).manifest
    check_document("cost-model", msgspec.json.encode(manifest))


def test_documents_of_the_pages_are_as_their_schemas_say() -> None:
    text = (ROOT / "docs" / "formats.md").read_text()
    placement = text.partition("```json\n")[2].partition("```")[0]
    check_document("placement", placement)


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": "1"},
        {"starts": [{"block": "f0", "micro_batch": 0}]},
        {"makespan": 8.5},
        {"unknown": 1},
        {"peak_memory": None},
    ],
    ids=str,
)
def test_what_a_reader_refuses_the_schema_refuses_too(change: dict[str, Any]) -> None:
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    document = json.loads(rule.build(vshape(2), micro_batches=2, memory=None).to_json())
    with pytest.raises(ValidationError):
        check_document("schedule", json.dumps({**document, **change}))


def test_printed_documents_may_get_keys_but_not_lose_them() -> None:
    printed = {"read": 1, "new": 1, "known": 0}
    check_printed(["records", "import", "some.jsonl", "--json"], json.dumps({**printed, "later": 1}))
    del printed["known"]
    with pytest.raises(ValidationError, match="'known' is a required property"):
        check_printed(["records", "import", "some.jsonl", "--json"], json.dumps(printed))

"""What is printed arrives: in any encoding, for any reader, and whatever a name from a file holds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from records import open_store
from scripts.terminal import console
from tessel.progress import messages
from tests.records.strategies import make_measurement, make_workload

ROOT = Path(__file__).parents[3]
EVIL = "a\x1b[31mred\x9b2J\nrecord 7\r\u202efdp\u2028[bold]:smile:\\"
SHOWN = "a\\x1b[31mred\\x9b2J\\nrecord 7\\r\\u202efdp\\u2028[bold]:smile:\\"


def start(*arguments: str, code: str = "", **settings: Any) -> subprocess.CompletedProcess[bytes]:
    program = ["-c", code] if code else ["-m", "scripts"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **settings.pop("environment", {})}
    settings.setdefault("stdout", subprocess.PIPE)
    return subprocess.run(
        [sys.executable, *program, *arguments],
        stderr=subprocess.PIPE,
        env=environment,
        check=False,
        timeout=300,
        **settings,
    )


@pytest.mark.parametrize(
    "arguments",
    ["--help", "--version", "records list --records {db}", "records list --json --records {db}"],
)
def test_a_reader_who_left_is_no_error(tmp_path: Path, arguments: str) -> None:
    path = tmp_path / "records.db"
    with open_store(str(path)) as store:
        workload = make_workload()
        store.append_many((workload, make_measurement(workload, [1.0 + i])) for i in range(50))
    reader, writer = os.pipe()
    os.close(reader)
    done = start(*arguments.format(db=path).split(), stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_under_stdout_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with open_store(str(path)) as store:
        store.append(make_workload(), make_measurement(make_workload()))
    with open("/dev/full", "wb") as full:
        done = start("records", "list", "--records", str(path), stdout=full)
    assert done.returncode == 1
    assert re.fullmatch(rb"tessel: the results cannot be written to stdout, No space left.*\n", done.stderr)


def test_a_command_whose_reader_left_still_does_its_work(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    path = tmp_path / "orders.csv"
    saved = f"schedule vshape --devices 2 --micro-batches 2 --quiet --save {path}"
    assert start(*saved.split(), stdout=writer).returncode == 0
    assert path.stat().st_size > 0
    failing = start("records", "show", "1", "--records", str(tmp_path / "missing.db"), stdout=writer)
    os.close(writer)
    assert failing.returncode == 2  # a reader who left does not make a failure good


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii:strict", "latin-1:strict"])
def test_characters_that_the_output_lacks_do_not_stop_it(tmp_path: Path, encoding: str) -> None:
    environment = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C"}
    path = tmp_path / "records.db"
    name = "π × € é 💩"
    with open_store(str(path)) as store:
        workload = make_workload()
        store.append(workload, make_measurement(workload, backend=name))
    text = start("records", "list", "--records", str(path), environment=environment)
    assert (text.returncode, text.stderr) == (0, b"")
    assert rb"\u03c0" in text.stdout
    document = start("records", "list", "--json", "--records", str(path), environment=environment)
    assert json.loads(document.stdout)["records"][0]["measurement"]["backend"] == name
    lines = tmp_path / "exported.jsonl"
    assert (
        start("records", "export", str(lines), "--records", str(path), environment=environment).returncode
        == 0
    )
    assert name in lines.read_text(encoding="utf-8")


def test_what_others_write_to_stdout_goes_to_stderr() -> None:
    code = (
        "import os, subprocess\n"
        "from scripts.terminal import output_streams\n"
        "output_streams.take_over()\n"
        "os.write(1, b'library ')\n"
        "subprocess.run(['echo', 'child'])\n"
        "print('{}')\n"
    )
    done = start(code=code)
    assert (done.stdout, done.stderr) == (b"{}\n", b"library child\n")


LOUD = """
import logging, os, subprocess, sys
from scripts import main
from scripts.documents.machines import TargetsListed
from scripts.terminal import console

def loud():
    handler = logging.StreamHandler(sys.stdout)  # as MetaSchedule's of ext://sys.stdout
    os.write(1, b"native ")
    subprocess.run(["echo", "child"])
    print("printed")
    logging.getLogger("tvm").addHandler(handler)
    logging.getLogger("tvm").warning("logged")
    console.print_json(TargetsListed(here={}, targets=()))
    print("after")

import typer
from scripts.app import app
root = typer.main.get_command(app)
root.commands["targets"].callback = lambda **_: loud()
typer.main.get_command = lambda _: root
main.run()
"""


def test_a_document_is_alone_on_stdout_whatever_is_printed_beside_it() -> None:
    done = start("targets", "--json", code=LOUD)
    assert json.loads(done.stdout) == {"here": {}, "targets": [], "gpus": {}}
    assert sorted(done.stderr.split()) == [b"after", b"child", b"logged", b"native", b"printed"]


def test_what_a_library_prints_beside_results_goes_to_stderr(
    tessel: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.commands.doctor.find_all", lambda: print("a library's line") or iter(()))
    outcome = tessel("doctor", "--json")
    assert json.loads(outcome.stdout) == {"findings": []}
    assert "a library's line" in outcome.stderr


def test_without_any_stdout_a_command_ends_well() -> None:
    done = start("--version", stdout=None, preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_version_is_one_line(tessel: Callable[..., Any]) -> None:
    outcome = tessel("--version")
    assert outcome.status == 0
    assert re.fullmatch(r"tessel \S+ \(Python 3\.\d+\.\d+\S*, TVM .+\)\n", outcome.stdout)


def test_names_from_files_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_line(EVIL)
    messages.note(EVIL)
    console.print_table(EVIL, ["name", "other"], [[EVIL, "1"]])
    console.print_table("", ["name", "other"], [["2", EVIL]])
    captured = capsys.readouterr()
    assert captured.err == SHOWN + "\n"
    lines = captured.out.splitlines()
    assert lines[0] == SHOWN
    assert lines[1].rstrip() == SHOWN  # the table's title
    assert [lines[2].split(), lines[4].split()] == [["name", "other"]] * 2
    assert [lines[3].split(), lines[5].split()] == [[*SHOWN.split(), "1"], ["2", *SHOWN.split()]]
    assert not set(captured.out + captured.err) & set("\x1b\x9b\r\u202e\u2028")


def test_empty_lines_around_a_line_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("\na\n", "\n", "", "a\nb"):
        console.print_line(text)
    assert capsys.readouterr().out == "\na\n\n" + "\n\n" + "\n" + "a\\nb\n"


def test_a_document_says_the_same_in_every_encoding() -> None:
    document = {"name": EVIL + "π💩\x7f", "file": "caf\udce9"}
    for encoding in ("utf-8", "ascii", "latin-1"):
        text = console.json_text(document, encoding)
        text.encode(encoding)
        assert not set(text) & set("\x1b\x9b\x7f\r\u202e\u2028")
        assert json.loads(text) == document
    assert console.json_text({"name": "π"}, "utf-8") == '{\n  "name": "π"\n}'


def test_a_record_and_an_error_show_names_as_they_are(tessel: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with open_store(str(path)) as store:
        workload = make_workload(name=EVIL)
        store.append(workload, make_measurement(workload, backend=EVIL))
    for arguments in (("show", 1), ("list",), ("stats",)):
        outcome = tessel("records", *arguments, "--records", path)
        assert outcome.status == 0
        assert "\\x1b[31mred" in outcome.stdout
        assert "\x1b" not in outcome.stdout
        assert not [line for line in outcome.stdout.splitlines() if line.startswith("record 7")]
    outcome = tessel("draw", f"{EVIL}.json")
    assert outcome.status == 2
    assert len(outcome.stderr.splitlines()) == 1
    assert "\\x1b[31mred" in outcome.stderr


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody may write in")
@pytest.mark.parametrize(
    ("arguments", "mentioned"),
    [
        ("schedule vshape --devices 2 --save /proc/x.json", "--save /proc/x.json cannot be written"),
        ("schedule vshape --devices 2 --save .", "is a folder"),
        ("schedule vshape --devices 2 --frontier --save x.json", ".svg"),
        ("partition mlp:tiny --picture /proc/x.svg", "--picture /proc/x.svg cannot be written"),
        ("partition mlp:tiny --picture x.gif", ".svg"),
        ("stages mlp:tiny --devices 2 --save /proc/x.json", "--save"),
        ("draw nowhere.json --out /proc/x.svg", "--out"),
        ("tune mlp:tiny --out /proc/x", "--out"),
        ("cost-model train --out /proc/x", "--out"),
        ("records collect --save-networks /proc/x/n.json", "--save-networks"),
        ("records export /proc/x.jsonl", "FILE"),
    ],
)
def test_what_cannot_be_written_is_said_before_any_work(
    tessel: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: str,
    mentioned: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for work in ("tuner.frontend.load_model", "tessel.search.find_schedule", "records.open_store"):
        monkeypatch.setattr(work, _must_not_begin)
    outcome = tessel(*arguments.split())
    assert outcome.status == 2
    assert len(outcome.stderr.splitlines()) == 1
    assert mentioned in outcome.stderr
    assert not list(tmp_path.iterdir())


def _must_not_begin(*arguments: object, **named: object) -> None:
    raise AssertionError("work began before the output was looked at")

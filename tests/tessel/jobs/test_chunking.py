"""`tessel chunk` and `tessel.chunk`: what is printed, saved and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tessel
from scripts.main import main
from tessel.documents import load_schedule

BASE = ("chunk", "4096", "--devices", "2", "--law", "100,10,0.01", "--multiple", "512")


def test_chunks_are_printed_saved_drawn_and_the_same_from_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "chunks.json"
    assert main([*BASE, "--decode-us", "50", "--save", str(saved), "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["chunks"]) == 4096
    assert found["optimal"]
    assert {each["rule"] for each in found["rules"]} == {"equal", "dynamic"}
    schedule = load_schedule(saved)
    assert abs(schedule.makespan - found["predicted_us"]) < 2 * schedule.micro_batches
    assert main(["draw", str(saved), "--out", str(tmp_path / "chunks.trace.json"), "--quiet"]) == 0
    drawn = json.loads((tmp_path / "chunks.trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in drawn) == 2 * schedule.micro_batches
    capsys.readouterr()
    called = tessel.chunk(4096, devices=2, law=(100, 10, 0.01), multiple=512, decode_us=50, progress=False)
    assert list(called.chunks) == found["chunks"]
    assert main([*BASE, "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "(proven optimal)" in out
    assert "dynamic, from" in out


def test_a_table_of_measured_chunks_gives_the_law(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "chunks.csv"
    rows = [(n, p, 100 + 10 * n + 0.01 * n * (p + n / 2)) for n in (256, 512, 1024) for p in (0, 4096)]
    table.write_text("prefix,tokens,note,time_us\n" + "".join(f"{p},{n},x,{t}\n" for n, p, t in rows))
    words = ("chunk", "4096", "--multiple", "512", "--stage-factors", "1,1", "--json", "--quiet")
    assert main([*words, "--times", str(table)]) == 0
    fitted = json.loads(capsys.readouterr().out)
    assert fitted["law"] == pytest.approx({"launch_us": 100, "token_us": 10, "pair_us": 0.01})
    assert fitted["worst_error"] < 1e-6
    assert main([*words, "--law", "100,10,0.01"]) == 0
    assert json.loads(capsys.readouterr().out)["chunks"] == fitted["chunks"]


@pytest.mark.parametrize(
    ("words", "text", "says"),
    [
        (("4096", "--law", "1,1,1"), "", "--devices is missing"),
        (("4096", "--devices", "2"), "", "give one of them"),
        (("4096", "--devices", "2", "--law", "1,2"), "", "--law has 2 numbers"),
        (("4096", "--devices", "2", "--law", "1,x,2"), "", "no list of numbers"),
        (("4096", "--devices", "2", "--law", "1,0,0"), "", "chunk law 1,0,0 is none"),
        (("4096", "--devices", "2", "--law", "1,nan,0"), "", "chunk law 1,nan,0 is none"),
        (("4096", "--devices", "3", "--stage-factors", "1,2", "--law", "1,1,0"), "", "has 2 for 3 devices"),
        (("4096", "--stage-factors", "1,0", "--law", "1,1,0"), "", "that is no time"),
        (("0", "--devices", "2", "--law", "1,1,1"), "", "has 0 tokens"),
        (("99999999", "--devices", "2", "--law", "1,1,1"), "", "larger --multiple"),
        (("4096", "--devices", "2", "--law", "1,1,1", "--max-chunk", "32"), "", "--max-chunk is 32"),
        (("4096", "--devices", "2", "--law", "1,1,1", "--max-wait-us", "2"), "", "let it wait longer"),
        (("4096", "--devices", "2", "--times", "{table}"), "tokens\n1\n", "has no column time_us"),
        (("4096", "--devices", "2", "--times", "{table}"), "tokens,time_us\n1,-3\n", "row 2, time_us"),
        (("4096", "--devices", "2", "--times", "{table}"), "tokens,time_us\n1.5,3\n", "is not whole"),
        (("4096", "--devices", "2", "--times", "{table}"), "tokens,time_us\n64,3\n", "do not determine"),
        (("4096", "--devices", "2", "--times", "no.csv"), "", "no.csv cannot be read"),
    ],
)
def test_wrong_usage_is_one_line(
    words: tuple[str, ...], text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(text)
    assert main(["chunk", *(word.format(table=table) for word in words), "--quiet"]) != 0
    said = capsys.readouterr()
    assert not said.out
    assert says in said.err
    assert len(said.err.splitlines()) == 1

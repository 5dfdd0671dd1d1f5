"""Progress says what is done and how long the rest takes."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from scripts.terminal.console import print_table
from tessel.jobs.shown.formatting import format_numbers
from tessel.jobs.shown.sections import Table
from tessel.progress import bars, messages
from tessel.progress.bars import describe_rest
from tests.harness.local_fleet import wait_until


@pytest.fixture(autouse=True)
def said() -> None:
    """Undo what a command that was quiet, run before in this process, has left."""
    messages.set_verbosity(quiet=False, verbose=False)


@pytest.mark.parametrize(
    ("completed", "total", "elapsed_s", "remaining_s", "limit_s", "expected"),
    [
        (12, 40, 8.2, 20.1, None, "12/40, 0:09, about 0:21 left"),
        (40, 40, 8.2, 0.0, None, "40/40, 0:09, finishing"),
        (0, 40, 0.5, None, None, "0/40, 0:01"),
        (0, None, 3.0, None, 10.0, "0:03, at most 0:07 left"),
        (0, None, 13.0, None, 10.0, "0:13, finishing"),
        (7, None, 3700.0, None, None, "7, 1:01:40"),
    ],
)
def test_what_is_left_is_said_where_it_can_be_known(
    completed: float,
    total: float | None,
    elapsed_s: float,
    remaining_s: float | None,
    limit_s: float | None,
    expected: str,
) -> None:
    assert (
        describe_rest(completed, total, elapsed_s=elapsed_s, remaining_s=remaining_s, limit_s=limit_s)
        == expected
    )


def test_a_log_gets_plain_lines_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "PLAIN_EVERY_S", 0.01)
    lines = [""]

    def next_lines() -> str:
        lines.append(capsys.readouterr().err)
        return lines[-1]

    with messages.bar("searching", limit_s=3000.0) as update:
        update("half done", 1, 2)
        wait_until(lambda: "1/2" in next_lines())  # the writer's next line has what was said last
        update("no longer counted")
        wait_until(lambda: re.search(r"no longer counted: \d+:\d\d, at most", next_lines()))
    assert "\x1b" not in lines[-1]
    capsys.readouterr()
    assert not [thread for thread in threading.enumerate() if thread.daemon and thread.name == "progress"]
    assert capsys.readouterr().err == ""


def test_quiet_progress_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "PLAIN_EVERY_S", 0.001)
    messages.set_verbosity(quiet=True, verbose=False)
    try:
        with messages.bar("searching") as update:
            update("half done", 1, 2)
            time.sleep(0.02)
    finally:
        messages.set_verbosity(quiet=False, verbose=False)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_number_a_device_stays_readable() -> None:
    assert format_numbers((6, 6, 6)) == "6"
    assert format_numbers((4, 3, 2, 1)) == "4,3,2,1"
    assert format_numbers(range(1, 65)) == "1 to 64"


def on_a_terminal(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], **options: Any
) -> list[str]:
    """Return the lines of a table on a terminal of a hundred columns."""
    found = io.StringIO()
    table = Table(title=title, columns=columns, rows=rows, **options)
    Console(file=found, width=100).print(table.shown())
    return found.getvalue().splitlines()


def test_names_stay_in_tables_with_wide_figures() -> None:
    lines = on_a_terminal("", ["schedule", "makespan", "peak"], [["early-recompute-1f1b", "12", "9" * 85]])
    assert lines[0].startswith("schedule")
    assert max(map(len, lines)) <= 100
    assert "".join(line[:8] for line in lines[1:]).strip() == "early-recompute-1f1b"


def test_long_text_is_folded_on_a_terminal_and_whole_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    others = [f"backend{number}" for number in range(30)]
    columns, rows = (
        ["operators", "latency", "others", "rule"],
        [["matmul", "12.0 us", "; ".join(others), "rule"]],
    )
    lines = on_a_terminal("", columns, rows, folded=("others", "rule"))
    assert max(map(len, lines)) <= 100
    assert all(other in "\n".join(lines) for other in others)
    assert "rule" in lines[1]
    print_table("", columns, rows, folded=("others", "rule"))
    _, row = capsys.readouterr().out.splitlines()
    assert rows[0][2] in row


def test_tracked_items_are_those_given() -> None:
    assert list(messages.track(iter("abc"), "letters", 3)) == ["a", "b", "c"]

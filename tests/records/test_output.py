"""Outputs appear whole or not at all, whatever stands where they are to be written."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from records import RecordError, open_store
from records.files.exchange import save_records
from records.output import check_output, open_output, output_problem, write_output
from tessel.documents import save
from tessel.errors import DocumentError
from tessel.handwritten import HANDWRITTEN
from tessel.picture.files import draw
from tessel.profiles.torch_hooks import COLUMNS, write_table
from tessel.shapes import vshape
from tests.records.strategies import make_measurement, make_workload

ROOT = Path(__file__).parents[2]
CONTENT = b"content\n" * 10_000  # more than a buffer


def test_a_new_file_has_the_mode_of_the_umask_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_output(tmp_path / "new", CONTENT)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o600)
    write_output(tmp_path / "new", b"again")
    assert (tmp_path / "new").read_bytes() == b"again"
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["x" * 250 + ".json", "a\nb", "[1]*?", " ", "-o", "é" * 120])
def test_any_name_that_the_file_system_takes_can_be_written(tmp_path: Path, name: str) -> None:
    check_output(tmp_path / name)
    write_output(tmp_path / name, CONTENT)
    assert (tmp_path / name).read_bytes() == CONTENT
    assert os.listdir(tmp_path) == [name]


def test_a_name_that_is_too_long_is_refused_before_and_when_written(tmp_path: Path) -> None:
    for refuse in (check_output, lambda path: write_output(path, b"")):
        with pytest.raises(OSError, match="too long") as caught:
            refuse(tmp_path / ("x" * 256))
        assert "give it a shorter name" in output_problem("x", caught.value)


def test_what_links_point_to_is_replaced_and_the_links_stay(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "there").symlink_to("folder/target")
    (tmp_path / "link").symlink_to("there")
    for content in (CONTENT, b"again"):  # dangling, then not
        write_output(tmp_path / "link", content)
        assert (tmp_path / "folder" / "target").read_bytes() == content
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").is_symlink()
    assert os.listdir(tmp_path / "folder") == ["target"]


def test_a_circle_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="link"):
        write_output(tmp_path / "a", CONTENT)
    assert (tmp_path / "a").is_symlink()


def test_a_body_that_fails_leaves_the_earlier_file_and_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"earlier")

    def fail() -> None:
        with open_output(tmp_path / "file") as file:
            file.write(CONTENT)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (tmp_path / "file").read_bytes() == b"earlier"
    assert os.listdir(tmp_path) == ["file"]


def test_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    with open_output(tmp_path / "file") as first, open_output(tmp_path / "file") as second:
        for _ in range(3):
            first.write(b"1" * 100_000)
            second.write(b"2" * 100_000)
    assert (tmp_path / "file").read_bytes() == b"1" * 300_000
    assert os.listdir(tmp_path) == ["file"]


def test_a_redirected_stdout_goes_on_where_it_is() -> None:
    program = """
import os
from records.output import write_output
os.write(1, b"before\\n")
write_output("/dev/stdout", b"document\\n")
os.write(1, b"after\\n")
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as to_pipe:
        assert to_pipe.communicate()[0] == b"before\ndocument\nafter\n"


def test_stdout_in_a_file_keeps_what_was_printed(tmp_path: Path) -> None:
    program = 'print(1); from records.output import write_output as w; w("/dev/fd/1", b"2\\n"); print(3)'
    with (tmp_path / "out").open("wb") as file:
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True)
    assert (tmp_path / "out").read_text() == "1\n2\n3\n"


def _save_records(path: Path) -> None:
    with open_store(str(path.with_name("records.db"))) as store:
        store.append(make_workload(), make_measurement(make_workload()))
        save_records(store, path)


def _save_figure(path: Path) -> None:
    path = path.rename(path.with_suffix(".png"))
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    draw(rule.build(vshape(2), micro_batches=2, memory=None), path)


def _save_table(path: Path) -> None:
    write_table([dict.fromkeys(COLUMNS, 1)], path)


WRITERS: dict[str, Callable[[Path], object]] = {
    "content": lambda path: write_output(path, CONTENT),
    "document": lambda path: save(vshape(2), path),
    "records": _save_records,
    "picture": _save_figure,
    "table": _save_table,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_writes_to_a_fifo(tmp_path: Path, writer: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    inode = (tmp_path / "fifo").stat().st_ino
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "fifo").read_bytes()), daemon=True)
    reader.start()
    WRITERS[writer](_linked(tmp_path, "fifo"))
    reader.join()
    assert len(read[0]) > 100
    assert (tmp_path / "fifo").stat().st_ino == inode


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_says_that_a_disk_is_full(tmp_path: Path, writer: str) -> None:
    with pytest.raises((OSError, RecordError, DocumentError), match="No space left"):
        WRITERS[writer](_linked(tmp_path, "/dev/full"))
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_no_module_writes_files_in_another_way() -> None:
    """What stands here writes into a folder that is its own, or appends to a journal."""
    own = {
        "records/output.py",
        "records/database/connection.py",  # SQLite writes the file
        "records/database/migration.py",
        "tessel/profiles/torch_hooks.py",  # copied into jobs, where the records are not
        "tessel/engine/nodes/team.py",
        "tessel/engine/outputs_check.py",
        "tessel/engine/serving/ranks.py",
        "tuner/measuring/communication/all_reduce.py",
        "tuner/measuring/communication/all_reduce_rank.py",
        "tuner/measuring/worker/server.py",  # of itself, under /proc
        "tuner/targets/cuda_compiler.py",
        "tuner/backends/metaschedule/kernel_exchange.py",
        "tuner/language/model_training.py",
        "tuner/frontend/onnx/runtime_process.py",
        "scripts/options/completion_words.py",
        "scripts/terminal/output_streams.py",  # os.devnull
    }
    writes = re.compile(
        r"""write_text\(|write_bytes\(|mkstemp\(|NamedTemporaryFile\(|\bos\.(?:replace|rename)\("""
        r"""|open\([^)]*["'][wax]b?["']|savefig\((?!drawn|text)"""
    )
    found = {
        str(path.relative_to(ROOT))
        for package in ("records", "cost_model", "tuner", "tessel", "scripts")
        for path in (ROOT / package).rglob("*.py")
        if writes.search(path.read_text())
    }
    assert {each for each in found if not each.startswith("tessel/engine/ranks/")} == own


def _linked(folder: Path, target: str) -> Path:
    (folder / "link").symlink_to(target)
    return folder / "link"

"""Load a trace: a file of a profiler, plain or compressed by gzip, or a folder with one of each rank.

Checked in tests/tessel/profiles/traces/test_load.py.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from pathlib import Path

from tessel.documents import read_bytes
from tessel.errors import DocumentError
from tessel.profiles.figures import refusal
from tessel.profiles.traces.kineto import read_kineto
from tessel.profiles.traces.nvtx import read_nvtx
from tessel.profiles.traces.ranges import Trace

MAX_TRACE_BYTES = 1 << 30
"""Largest trace of a rank that is read, decompressed; one step of a large model has some 100 MiB."""

SUFFIXES = (".json", ".json.gz")
"""Ends of the names of PyTorch's traces."""

_GZIP = b"\x1f\x8b"


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace of PyTorch's profiler, of a rank or a folder of all, or a report of NVTX ranges.

    Raises:
        DocumentError: a file cannot be read, is no trace, or says of no range which stage or layer it is of.
    """
    path = Path(path)
    files = trace_files(path)
    if not files:
        raise DocumentError(f"{path} has no file that ends with {' or '.join(SUFFIXES)}; name a trace")
    texts = {file: read_text(file) for file in files}
    first = next(iter(texts.values()))
    if len(texts) == 1 and first.lstrip()[:1] != b"{":
        return read_nvtx(path, first)
    return read_kineto(path, texts)


def trace_files(path: Path) -> tuple[Path, ...]:
    """Return the files of a trace: itself, or those in a folder whose names end as traces do."""
    if not path.is_dir():
        return (path,)
    return tuple(sorted(each for each in path.iterdir() if each.name.endswith(SUFFIXES) and each.is_file()))


def is_trace_file(path: Path) -> bool:
    """Whether a file's name is one that profilers give: they may be compressed, and larger than documents."""
    return path.name.endswith((".gz", "trace.json"))


def read_text(path: Path) -> bytes:
    """Return the bytes of a file, decompressed where they are by gzip.

    Raises:
        DocumentError: it cannot be read, is empty, damaged or too large, or is no text.
    """
    text = read_bytes(path, most=MAX_TRACE_BYTES)
    if text.startswith(_GZIP):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(text)) as file:
                text = file.read(MAX_TRACE_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise refusal(path, "", f"it is a damaged gzip file, {error}", "write it again") from error
        if len(text) > MAX_TRACE_BYTES:
            raise refusal(
                path,
                "",
                f"it has more than {MAX_TRACE_BYTES >> 20} MiB when decompressed",
                "trace fewer steps, without memory and shapes",
            )
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise refusal(path, "", f"byte {error.start} is not UTF-8", "give the profiler's own file") from error
    return text

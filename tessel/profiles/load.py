"""Load a profile of any format: the format is detected by content, or named.

Each format has a module of its own; `FORMATS` is the one list of them, which a new format joins. Checked in
tests/tessel/profiles/.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import msgspec

from records.own_files import FileKind, other_files_named
from tessel.documents import read_document
from tessel.errors import DocumentError, ScheduleError, shown
from tessel.profiles import table, tuned_plan
from tessel.profiles.figures import decode_json, refusal
from tessel.profiles.profile import Profile
from tessel.profiles.reading import Reading
from tessel.profiles.traces.kineto import read_kineto
from tessel.profiles.traces.load import is_trace_file, load_trace, read_text, trace_files
from tessel.profiles.traces.logs import is_log, read_log
from tessel.profiles.traces.nvtx import is_nvtx, read_nvtx
from tessel.profiles.traces.ranges import Trace
from tessel.profiles.traces.trace_profile import profile_of_trace
from tessel.progress.manual import manual

MAX_HEADER_LINES = 8
"""Lines among which the header of a report of nsys is looked for, which says what it does before it."""

FOLDER_FILE = "plan.json"
"""What a folder stands for, where it lies in it."""


@dataclass(frozen=True, slots=True)
class ProfileFormat:
    """A format that profiles are read from.

    Attributes:
        title: as it is called in messages.
        read: reads a file; given its path and its bytes.
    """

    title: str
    read: Callable[[Path, bytes], Reading]


def _of_trace(read: Callable[[Path, bytes], Trace]) -> Callable[[Path, bytes], Reading]:
    """Return what reads the profile that a trace is."""
    return lambda path, text: Reading(profile_of_trace(read(path, text), path), says_micro_batch=False)


FORMATS = MappingProxyType(
    {
        "csv": ProfileFormat("table as CSV", table.read_csv),
        "json": ProfileFormat("table as JSON", table.read_json),
        "plan": ProfileFormat("plan of tessel tune", tuned_plan.read_plan),
        "saved-plan": ProfileFormat("plan of tessel plan", tuned_plan.read_saved),
        "stages": ProfileFormat("document of tessel stages", tuned_plan.read_stages),
        "trace": ProfileFormat(
            "trace of PyTorch's profiler", _of_trace(lambda path, text: read_kineto(path, {path: text}))
        ),
        "nvtx": ProfileFormat("report of NVTX ranges", _of_trace(read_nvtx)),
        "log": ProfileFormat("log of a training job", read_log),
    }
)
"""Every format by its name."""


def load_profile(
    path: str | os.PathLike[str],
    *,
    format_name: str | None = None,
    num_layers: int | None = None,
    micro_batch: int | None = None,
    **degrees: int | None,
) -> Profile:
    """Read a profile.

    Args:
        path: a file, or a folder that holds a `plan.json`, or one trace of each rank.
        format_name: a key of `FORMATS`; detected by content where None.
        num_layers: layers of the model, first and last included, where one block between these is repeated.
        micro_batch: samples of a micro-batch: what the figures were measured at where the file does not say,
            else the one size to keep.
        **degrees: the one degree of each kind to keep, by the name of its column, such as `tensor_parallel`.

    Raises:
        DocumentError: the file cannot be read, or is no profile; the message names file, row and remedy.
    """
    path = Path(path)
    if _is_folder_of_traces(path):
        profile = profile_of_trace(load_trace(path), path)
        reading = Reading(profile, says_micro_batch=False)
        return finish_profile(reading, path, num_layers=num_layers, micro_batch=micro_batch, **degrees)
    path = _file_of(path)
    with other_files_named(path, "a profile", DocumentError, (FileKind.TABLE, FileKind.PLAN, FileKind.TRACE)):
        return profile_of_text(
            path,
            read_text(path) if is_trace_file(path) else read_document(path),
            format_name=format_name,
            num_layers=num_layers,
            micro_batch=micro_batch,
            **degrees,
        )


def profile_of_text(
    path: Path,
    text: bytes,
    *,
    format_name: str | None = None,
    num_layers: int | None = None,
    micro_batch: int | None = None,
    **degrees: int | None,
) -> Profile:
    """Return the profile of a text, which messages call by its path; see `load_profile`.

    Raises:
        DocumentError: it is no profile.
    """
    name = detect_format(path, text) if format_name is None else format_name
    if name not in FORMATS:
        raise ValueError(f"the format {name!r} is not known; choose one of {', '.join(FORMATS)}")
    return finish_profile(
        FORMATS[name].read(path, text), path, num_layers=num_layers, micro_batch=micro_batch, **degrees
    )


def detect_format(path: Path, text: bytes) -> str:
    """Return the name of the format that a file is in.

    Raises:
        DocumentError: it is in none.
    """
    if text.lstrip()[:1] != b"{" and is_log(text.decode()):
        return "log"
    if text.lstrip()[:1] in (b"{", b"["):
        return _format_of_json(path, text)
    lines = (line for line in text.decode("utf-8-sig").splitlines() if line.strip() and line[0] != "#")
    begin = islice(lines, MAX_HEADER_LINES)
    return "nvtx" if any(map(is_nvtx, begin)) else "csv"


def _format_of_json(path: Path, text: bytes) -> str:
    if text.lstrip().startswith(b"["):
        return "json"
    keys = decode_json(text, dict[str, msgspec.Raw], path)
    for name, needed in _KEYS.items():
        if needed <= keys.keys():
            return name
    found = shown(", ".join(sorted(keys)[:5])) or "no keys"
    raise refusal(
        path,
        "",
        f"it has {found}, which is no profile",
        f"{manual('profiles.md')} shows all formats that are read",
    )


_KEYS = {
    "trace": {"traceEvents"},
    "json": {"layers"},
    "plan": {"stages", "schedule"},
    "saved-plan": {"profile", "layout"},
    "stages": {"stages", "tied"},
}
"""Keys that tell a JSON document's format."""


def _is_folder_of_traces(path: Path) -> bool:
    return path.is_dir() and not (path / FOLDER_FILE).is_file() and bool(trace_files(path))


def _file_of(path: Path) -> Path:
    """Return the file that a folder stands for, and any other path as it is.

    Raises:
        DocumentError: a folder holds none.
    """
    if not path.is_dir():
        return path
    if not (path / FOLDER_FILE).is_file():
        raise DocumentError(
            f"{path} is a folder without {FOLDER_FILE} or traces, and a profile is a file; name one in it"
        )
    return path / FOLDER_FILE


def finish_profile(
    reading: Reading,
    path: Path,
    *,
    num_layers: int | None = None,
    micro_batch: int | None = None,
    **degrees: int | None,
) -> Profile:
    """Return a profile with so many layers, and one size and degrees alone, where they are given.

    Args:
        reading: the profile as it was read.
        path: the file, for messages.
        num_layers: see `load_profile`.
        micro_batch: likewise.
        **degrees: likewise.

    Raises:
        DocumentError: it has no such layers, size or degree.
    """
    try:
        profile = reading.profile if num_layers is None else reading.profile.with_num_layers(num_layers)
    except ScheduleError as error:
        raise refusal(path, "", error, "or leave --num-layers out") from error
    tables = profile.tables
    if micro_batch is not None and not reading.says_micro_batch:
        tables = tuple(msgspec.structs.replace(each, micro_batch=micro_batch) for each in tables)
    wanted_by_name = {"micro_batch": micro_batch, **degrees}
    for name, wanted in wanted_by_name.items():
        title = "micro-batch size" if name == "micro_batch" else f"{name.replace('_', '-')} degree"
        kept = tuple(each for each in tables if wanted in (None, getattr(each, name)))
        if not kept:
            known = ", ".join(str(value) for value in sorted({getattr(each, name) for each in tables}))
            raise refusal(path, "", f"it has no {title} {wanted}", f"choose one of {known}")
        tables = kept
    return msgspec.structs.replace(profile, tables=tables)

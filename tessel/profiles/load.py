"""Load a profile of any format: the format is detected by content, or named.

Each format has a module of its own; `FORMATS` is the one list of them, which a new format joins. Checked, one
contract for all, in tests/tessel/profiles/test_readers.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec

from tessel.documents import read_document
from tessel.errors import DocumentError, ScheduleError, shown
from tessel.profiles import aceso, metis, neusight, pipedream, sailor, table, tuned_plan
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

FOLDER_FILES = ("profile.json", "graph.txt", "plan.json")
"""What a folder stands for, where one of these lies in it."""


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
        "sailor": ProfileFormat("profile of Sailor", sailor.read),
        "aceso": ProfileFormat("profile of Aceso", aceso.read),
        "metis": ProfileFormat("profile of Metis", metis.read),
        "pipedream": ProfileFormat("graph of PipeDream", pipedream.read),
        "neusight": ProfileFormat("label of NeuSight", neusight.read),
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
    entry: str | None = None,
    num_layers: int | None = None,
    micro_batch: int | None = None,
    **degrees: int | None,
) -> Profile:
    """Read a profile.

    Args:
        path: a file, or a folder that holds a `profile.json`, `graph.txt` or `plan.json`, or one trace
            of each rank. Formats that keep a file for each micro-batch size are given one of these.
        format_name: a key of `FORMATS`; detected by content where None.
        entry: which profile of a file that holds several, as `MODEL/GPU`.
        num_layers: layers of the model, first and last included, where the file holds one repeated block.
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
        return _only(_with_num_layers(reading, num_layers, path), reading, micro_batch, degrees, path)
    path = _file_of(path)
    return profile_of_text(
        path,
        read_text(path) if is_trace_file(path) else read_document(path),
        format_name=format_name,
        entry=entry,
        num_layers=num_layers,
        micro_batch=micro_batch,
        **degrees,
    )


def profile_of_text(
    path: Path,
    text: bytes,
    *,
    format_name: str | None = None,
    entry: str | None = None,
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
    read = FORMATS[name].read
    if entry is not None:
        if name != "sailor":
            raise refusal(path, "", f"a {FORMATS[name].title} has no entries", f"leave the entry {entry} out")
        read = partial(sailor.read, entry=entry)
    reading = read(path, text)
    profile = _with_num_layers(reading, num_layers, path)
    return _only(profile, reading, micro_batch, degrees, path)


def detect_format(path: Path, text: bytes) -> str:
    """Return the name of the format that a file is in.

    Raises:
        DocumentError: it is in none.
    """
    if text.lstrip()[:1] != b"{" and is_log(text.decode()):
        return "log"
    if text.lstrip()[:1] in (b"{", b"["):
        return _format_of_json(path, text)
    header = next(
        (line for line in text.decode("utf-8-sig").splitlines() if line.strip() and line[0] != "#"), ""
    )
    if "forward_compute_time=" in header:
        return "pipedream"
    if "forward-compute" in header and "op_name" in header:
        return "aceso"
    if "fw_latency" in header and "bw_latency" in header:
        return "neusight"
    return "nvtx" if is_nvtx(header) else "csv"


def _format_of_json(path: Path, text: bytes) -> str:
    if text.lstrip().startswith(b"["):
        return "json"
    keys = decode_json(text, dict[str, msgspec.Raw], path)
    for name, needed in _KEYS.items():
        if needed <= keys.keys():
            return name
    if keys and all(bytes(value).lstrip().startswith(b"{") for value in keys.values()):
        return "sailor"
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
    "metis": {"model", "execution_time", "execution_memory"},
    "neusight": {"num_layer", "fw_latency"},
}
"""Keys that tell a JSON document's format."""


def _is_folder_of_traces(path: Path) -> bool:
    return (
        path.is_dir()
        and not any((path / name).is_file() for name in FOLDER_FILES)
        and bool(trace_files(path))
    )


def _file_of(path: Path) -> Path:
    """Return the file that a folder stands for, and any other path as it is.

    Raises:
        DocumentError: a folder holds none of the known files.
    """
    if not path.is_dir():
        return path
    found = next((path / name for name in FOLDER_FILES if (path / name).is_file()), None)
    if found is None:
        raise DocumentError(
            f"{path} is a folder without {', '.join(FOLDER_FILES)} or traces, and a profile is a file; name "
            "one in it"
        )
    return found


def _with_num_layers(reading: Reading, num_layers: int | None, path: Path) -> Profile:
    profile = reading.profile
    if num_layers is None and not reading.says_num_layers:
        raise refusal(
            path,
            "",
            "it holds one block, and does not say how many the model has",
            "add --num-layers, counting the first and the last layer",
        )
    try:
        return profile if num_layers is None else profile.with_num_layers(num_layers)
    except ScheduleError as error:
        raise refusal(path, "", error, "or leave --num-layers out") from error


def _only(
    profile: Profile, reading: Reading, micro_batch: int | None, degrees: Mapping[str, int | None], path: Path
) -> Profile:
    """Return the profile at one micro-batch size and one degree of a kind alone, where they are given."""
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

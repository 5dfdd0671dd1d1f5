"""Load a profile of any other planner: the format is detected by content, or named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec

from benchmarks.profile_readers import aceso, metis, neusight, pipedream, sailor
from benchmarks.profile_readers.reading import Reading
from tessel.documents import read_document
from tessel.errors import DocumentError, shown
from tessel.profiles.figures import decode_json, refusal
from tessel.profiles.load import finish_profile
from tessel.profiles.profile import Profile
from tessel.profiles.reading import Reading as OwnReading

FORMATS: Mapping[str, Callable[..., Reading]] = MappingProxyType(
    {
        "sailor": sailor.read,
        "aceso": aceso.read,
        "metis": metis.read,
        "pipedream": pipedream.read,
        "neusight": neusight.read,
    }
)
"""Every format by its name."""

FOLDER_FILES = ("profile.json", "graph.txt")
"""What a folder stands for, where one of these lies in it."""

_KEYS = {
    "metis": {"model", "execution_time", "execution_memory"},
    "neusight": {"num_layer", "fw_latency"},
}
"""Keys that tell a JSON document's format."""

_HEADERS = {
    "pipedream": ("forward_compute_time=",),
    "aceso": ("forward-compute", "op_name"),
    "neusight": ("fw_latency", "bw_latency"),
}
"""What stands in the first line of a text."""


def load(
    path: Path,
    *,
    format_name: str | None = None,
    entry: str | None = None,
    num_layers: int | None = None,
    micro_batch: int | None = None,
    tensor_parallel: int | None = None,
) -> Profile:
    """Read a profile.

    Args:
        path: a file, or a folder that holds `profile.json` or `graph.txt`. Formats that keep a file for each
            micro-batch size are given one of these.
        format_name: a key of `FORMATS`; detected by content where None.
        entry: which profile of a file of Sailor that holds several, as `MODEL/GPU`.
        num_layers: layers of the model, first and last included, where the file holds one repeated block.
        micro_batch: samples of a micro-batch: what the figures were measured at where the file does not say,
            else the one size to keep.
        tensor_parallel: the one degree to keep.

    Raises:
        DocumentError: the file cannot be read, or is no profile; the message names file, row and remedy.
    """
    path = _file_of(path)
    text = read_document(path)
    name = detect_format(path, text) if format_name is None else format_name
    read = FORMATS[name]
    if entry is not None:
        if name != "sailor":
            raise refusal(path, "", f"a file of {name} has no entries", f"leave the entry {entry} out")
        read = partial(read, entry=entry)
    reading = read(path, text)
    if num_layers is None and not reading.says_num_layers:
        raise refusal(
            path,
            "",
            "it holds one block, and does not say how many the model has",
            "add --num-layers, counting the first and the last layer",
        )
    return finish_profile(
        OwnReading(reading.profile, says_micro_batch=reading.says_micro_batch),
        path,
        num_layers=num_layers,
        micro_batch=micro_batch,
        tensor_parallel=tensor_parallel,
    )


def detect_format(path: Path, text: bytes) -> str:
    """Return the name of the format that a file is in.

    Raises:
        DocumentError: it is in none.
    """
    if text.lstrip()[:1] == b"{":
        return _format_of_json(path, text)
    lines = text.decode("utf-8-sig").splitlines()
    header = next((line for line in lines if line.strip() and line[0] != "#"), "")
    for name, parts in _HEADERS.items():
        if all(part in header for part in parts):
            return name
    raise refusal(path, "", "it is no profile of another planner", f"these are read: {', '.join(FORMATS)}")


def _format_of_json(path: Path, text: bytes) -> str:
    keys = decode_json(text, dict[str, msgspec.Raw], path)
    for name, needed in _KEYS.items():
        if needed <= keys.keys():
            return name
    if keys and all(bytes(value).lstrip().startswith(b"{") for value in keys.values()):
        return "sailor"
    found = shown(", ".join(sorted(keys)[:5])) or "no keys"
    raise refusal(path, "", f"it has {found}, which is no profile", f"these are read: {', '.join(FORMATS)}")


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
            f"{path} is a folder without {', '.join(FOLDER_FILES)}, and a profile is a file; name one in it"
        )
    return found

"""Read the zip archive of a model file without trusting its metadata.

All that the directory claims is checked before the first byte is unpacked, and again while unpacking: how
many entries there are, how large they become, where they lie, and what they are called. Nothing is ever
written to disk. Checked in tests/tuner/frontend/torch/exported/test_model_archive.py.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Sequence

MAX_ENTRIES = 100_000
"""Entries of an archive: one a weight, and a dozen beside. The largest models have some thousands."""

MAX_RATIO = 20
"""Largest an archive may become when it is unpacked, as a multiple of its size. `torch.export.save` does not
compress at all; weights that somebody else compressed shrink by some per cent, the program's text by ten."""

_ROOM_BYTES = 16 * 2**20
"""Bytes to which even a small archive may unpack: the text of a program compresses better than weights do."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_NAME = re.compile(r"[^\x00-\x1f\x7f\\:]{1,1024}")
_ENCRYPTED = 0x1


class ModelArchive:
    """The entries of a zip archive, checked.

    Args:
        content: the file's bytes.

    Raises:
        ValueError: it is no zip archive, or one whose directory makes a claim that no model's does.
    """

    def __init__(self, content: bytes) -> None:
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(content))
            entries = self._zip.infolist()
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, struct.error) as error:
            raise ValueError(f"it is no zip archive ({error})") from error
        _check_directory(entries, len(content))
        self._entries = {entry.filename: entry for entry in entries}

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entries, in the order of the directory."""
        return tuple(self._entries)

    def read(self, name: str) -> bytes:
        """Return the bytes of an entry.

        Raises:
            ValueError: there is no such entry, or it does not hold what the directory says.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise ValueError(f"the archive has no entry {name[:100]!r}")
        try:
            with self._zip.open(entry) as stream:
                content = stream.read(entry.file_size + 1)
        except (
            zipfile.BadZipFile,
            zlib.error,
            OSError,
            EOFError,
            NotImplementedError,
            RuntimeError,
            struct.error,
        ) as error:
            raise ValueError(f"entry {name[:100]!r} cannot be unpacked ({error})") from error
        if len(content) != entry.file_size:
            raise ValueError(
                f"entry {name[:100]!r} has {len(content)} bytes or more, and the directory says "
                f"{entry.file_size}"
            )
        return content


def _check_directory(entries: Sequence[zipfile.ZipInfo], archive_bytes: int) -> None:
    if len(entries) > MAX_ENTRIES:
        raise ValueError(f"the archive has {len(entries)} entries; {MAX_ENTRIES} are the most")
    seen: set[str] = set()
    for entry in entries:
        _check_name(entry.filename, entry.orig_filename)
        if entry.filename in seen:
            raise ValueError(f"the archive has two entries {entry.filename[:100]!r}")
        seen.add(entry.filename)
        if entry.compress_type not in _METHODS or entry.flag_bits & _ENCRYPTED:
            raise ValueError(f"entry {entry.filename[:100]!r} is encrypted, or packed as no model's is")
        if entry.compress_type == zipfile.ZIP_STORED and entry.file_size != entry.compress_size:
            raise ValueError(f"entry {entry.filename[:100]!r} is not packed and yet has two sizes")
    # Entries that share their bytes would each be within bounds.
    packed = sum(entry.compress_size for entry in entries)
    if packed > archive_bytes:
        raise ValueError(f"the entries have {packed} bytes, and the whole archive {archive_bytes}")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > max(MAX_RATIO * archive_bytes, _ROOM_BYTES):
        raise ValueError(
            f"the archive of {archive_bytes} bytes would unpack to {unpacked}, more than {MAX_RATIO} times "
            "as much"
        )


def _check_name(name: str, written: str) -> None:
    """Refuse names that lead out of the archive, though nothing is unpacked to disk."""
    parts = name.split("/")
    if name != written or not _NAME.fullmatch(name) or name.startswith("/") or ".." in parts:
        raise ValueError(f"entry {name[:100]!r} has no name that a model's archive has")

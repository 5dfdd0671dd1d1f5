"""Wheels that a GPU's machine lacks, carried there in archives of a limited size, the largest in parts.

    pip download --no-deps --only-binary=:all: --python-version 3.12 -d wheels apache-tvm==0.27.0.post1 …
    python -m benchmarks.gpu_day.archives pack wheels archives       # archives/part-00.tar, part-01.tar, …
    python -m benchmarks.gpu_day.archives unpack archives wheels     # there; `make gpu-day ARCHIVES=archives`

Each archive is carried by itself; one that is missing or was changed is named. Weights and inputs are drawn
from seeds, so that there is no data to carry. Checked in tests/software_gpu/test_gpu_day.py.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MOST_BYTES = 32 << 20
"""Of one archive: half of what may be carried at a time, since the sources are carried with each."""

_INDEX = "index.json"
_MARGIN = 64 << 10
"""What the index and the archive's own blocks take, at most."""


def pack(wheels: Path, archives: Path, most_bytes: int = MOST_BYTES) -> list[Path]:
    """Write the files of a folder as archives that are no larger than a limit, and return these.

    Raises:
        ValueError: there is no file, or the folder of archives is not empty.
    """
    files = sorted(path for path in wheels.iterdir() if path.is_file())
    if not files:
        raise ValueError(f"{wheels} holds no file; download the wheels into it first")
    archives.mkdir(parents=True, exist_ok=True)
    if any(archives.iterdir()):
        raise ValueError(f"{archives} is not empty; name a new folder")
    parts = list(_parts(files, most_bytes - _MARGIN))
    digests = [hashlib.sha256(b"".join(content for _, _, content in part)).hexdigest() for part in parts]
    written = []
    for number, part in enumerate(parts):
        index = {"number": number, "digests": digests}
        path = archives / f"part-{number:02}.tar"
        with tarfile.open(path, "w") as archive:
            _add(archive, _INDEX, json.dumps(index).encode())
            for name, offset, content in part:
                _add(archive, f"{offset:012}/{name}", content)
        written.append(path)
    return written


def unpack(archives: Path, wheels: Path) -> list[Path]:
    """Write the files that were packed into a folder, and return them.

    Raises:
        ValueError: an archive is missing, was changed, or is of another set; names it.
    """
    pieces: dict[str, dict[int, bytes]] = {}
    digests: list[str] | None = None
    found = set()
    for path in sorted(archives.glob("part-*.tar")):
        index, contents = _read(path)
        digests = digests or index["digests"]
        joined = hashlib.sha256(b"".join(content for _, _, content in contents)).hexdigest()
        if digests != index["digests"] or joined != digests[index["number"]]:
            raise ValueError(f"{path} was changed, or belongs to other archives; carry it again")
        found.add(index["number"])
        for name, offset, content in contents:
            pieces.setdefault(name, {})[offset] = content
    missing = sorted(set(range(len(digests or [""]))) - found)
    if missing:
        raise ValueError(f"{archives} lacks part-{missing[0]:02}.tar; carry it, too")
    wheels.mkdir(parents=True, exist_ok=True)
    for name, by_offset in pieces.items():
        (wheels / name).write_bytes(b"".join(by_offset[offset] for offset in sorted(by_offset)))
    return [wheels / name for name in sorted(pieces)]


def _parts(files: Sequence[Path], most_bytes: int) -> Iterator[list[tuple[str, int, bytes]]]:
    """Yield name, offset and content of what goes into each archive, in order."""
    part: list[tuple[str, int, bytes]] = []
    left = most_bytes
    for path in files:
        content, offset = path.read_bytes(), 0
        while offset < len(content):
            taken = content[offset : offset + left]
            part.append((path.name, offset, taken))
            offset += len(taken)
            left -= len(taken) + 2 * tarfile.BLOCKSIZE
            if left <= 0:
                yield part
                part, left = [], most_bytes
    if part:
        yield part


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _read(path: Path) -> tuple[dict[str, Any], list[tuple[str, int, bytes]]]:
    """Return an archive's index, and name, offset and content of what it holds."""
    try:
        with tarfile.open(path) as archive:
            named = [(entry.name, archive.extractfile(entry)) for entry in archive.getmembers()]
            contents = {name: file.read() for name, file in named if file is not None}
        index = json.loads(contents.pop(_INDEX))
        pieces = [(Path(name).name, int(name.partition("/")[0]), each) for name, each in contents.items()]
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is no archive of these ({error}); carry it again") from error
    return index, pieces


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack or unpack, and say what was written."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_day.archives")
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("to", type=Path)
    given = parser.parse_args(arguments)
    try:
        written = (pack if given.what == "pack" else unpack)(given.source, given.to)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for path in written:
        print(f"{path} {path.stat().st_size / (1 << 20):.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

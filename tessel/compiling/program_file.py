"""Compiled programs of one model as one file: their manifests, their code and their weights.

    magic, length of the header
    header              JSON: the manifests, and name, size and SHA-256 of each section
    program, program 1  compiled code for each of the shapes, a shared library
    weight 0 …          the bytes of each tensor; one that several programs have alike is there once
    SHA-256             of everything before it

Sections are aligned, so that weights are mapped and never read as a whole: processes that load one file share
them. A digest finds a changed byte; it does not say who wrote the file, and loading one runs its code
(docs/security.md). Reading imports neither the tuner nor a compiler. Checked in
tests/tessel/compiling/test_loading.py.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from records.output import open_output
from tuner.runtime.bound_arguments import provide_calls
from tuner.runtime.compiled_program import CompiledProgram, assemble
from tuner.runtime.manifest import SCHEMA_VERSION, Manifest, UnfitProgramError, check_fits
from tuner.runtime.native import ALIGNMENT, load_library

_MAGIC = b"tessel program\r\n"
_LENGTH_BYTES = 8
_DIGEST_BYTES = hashlib.sha256().digest_size
_MAX_HEADER_BYTES = 256 << 20
_LIBRARY = "program"

Fill = bool | int | float
"""What fills up an input that is padded."""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run of bytes of the file."""

    name: str
    size: int
    sha256: str


class _Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of a program before its code is loaded.

    Attributes:
        weights: for each of its tensors, which of the file's.
    """

    manifest: Manifest
    weights: tuple[int, ...]


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the file begins with."""

    schema_version: int = SCHEMA_VERSION
    programs: tuple[_Program, ...]
    padding: dict[str, Fill] = {}
    sections: tuple[_Section, ...]


@dataclass(frozen=True, slots=True)
class StoredPrograms:
    """What a file holds.

    Attributes:
        programs: of each shape, and what gives its code again.
        padding: what fills up inputs, by name.
    """

    programs: tuple[tuple[CompiledProgram, Callable[[], bytes]], ...]
    padding: Mapping[str, Fill]


def write_program(
    programs: Sequence[CompiledProgram],
    libraries: Sequence[bytes],
    path: str | os.PathLike[str],
    *,
    padding: Mapping[str, Fill] | None = None,
) -> int:
    """Write programs of one model, and return the bytes; the file is there whole or not at all.

    Args:
        programs: one for each of the shapes.
        libraries: their code.
        padding: what fills up inputs, by name.

    Raises:
        ValueError: a program calls what no run time provides, such as a backend of one's own.
        OSError: the file cannot be written.
    """
    contents: list[bytes | memoryview] = list(libraries)
    names = [_LIBRARY, *(f"{_LIBRARY} {position}" for position in range(1, len(libraries)))]
    positions: dict[str, int] = {}
    stored = []
    for compiled in programs:
        provide_calls(compiled.manifest.calls)
        held = []
        for weight in compiled.weights:
            digest = hashlib.sha256(weight.data).hexdigest()
            if digest not in positions:
                names.append(f"weight {len(positions)}")
                contents.append(weight.data)
            held.append(positions.setdefault(digest, len(positions)))
        stored.append(_Program(manifest=compiled.manifest, weights=tuple(held)))
    sections = tuple(
        _Section(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in zip(names, contents, strict=True)
    )
    document = _Header(programs=tuple(stored), padding=dict(padding or {}), sections=sections)
    header = msgspec.json.encode(document, order="sorted")
    with open_output(path) as file:
        written = _HashedOutput(file)
        written.write(_MAGIC + len(header).to_bytes(_LENGTH_BYTES, "little") + header)
        for content in contents:
            written.write(bytes(-written.size % ALIGNMENT))
            written.write(content)
        written.write(written.digest.digest())
    return written.size


def read_program(path: str | os.PathLike[str]) -> StoredPrograms:
    """Return the programs of a file, their code loaded and their weights mapped.

    Raises:
        UnfitProgramError: the file is none of a program, was changed, or is for another processor or other
            versions; says which.
        OSError: it cannot be read.
    """
    opened = _OpenedFile(path)
    stored = opened.header.programs
    for each in stored:
        check_fits(each.manifest, str(path))
    try:
        libraries, weights = opened.contents[: len(stored)], opened.contents[len(stored) :]
        if not stored or len(libraries) < len(stored):
            raise ValueError("it holds no program")
        programs = tuple(
            (_assembled(each, library, weights), library.tobytes)
            for each, library in zip(stored, libraries, strict=True)
        )
    except (ValueError, OSError) as error:
        raise UnfitProgramError(f"{path} cannot be loaded ({error}); compile it again") from error
    return StoredPrograms(programs, opened.header.padding)


def _assembled(program: _Program, library: np.ndarray, weights: Sequence[np.ndarray]) -> CompiledProgram:
    """Return a program with its tensors.

    Raises:
        ValueError: they are not those that its manifest names.
    """
    manifest = program.manifest
    provide_calls(manifest.calls)
    if not all(0 <= position < len(weights) for position in program.weights):
        raise ValueError("it names weights that it does not hold")
    own = [weights[position] for position in program.weights]
    if [spec.num_bytes for spec in manifest.weights] != [len(weight) for weight in own]:
        raise ValueError("its weights are not those that its manifest names")
    return assemble(manifest, load_library(library.tobytes()), own)


class _HashedOutput:
    """A file that is written from its start, with the digest of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, content: bytes | memoryview) -> None:
        """Append bytes."""
        self._file.write(content)
        self.digest.update(content)
        self.size += len(content)


class _OpenedFile:
    """A file that is mapped and found unchanged.

    Attributes:
        header: what it begins with.
        contents: the bytes of each section, mapped.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._where = str(path)
        with Path(path).open("rb") as file:
            is_empty = not os.fstat(file.fileno()).st_size
            # A private map: what kernels might write would be this process's own.
            mapped = b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._bytes = np.frombuffer(mapped, np.uint8)
        start = len(_MAGIC) + _LENGTH_BYTES
        if self._bytes[: len(_MAGIC)].tobytes() != _MAGIC or self._bytes.size < start + _DIGEST_BYTES:
            raise UnfitProgramError(
                f"{self._where} is no program that `tessel compile` saved; check the path"
            )
        end = start + int.from_bytes(self._bytes[len(_MAGIC) : start].tobytes(), "little")
        digest = hashlib.sha256(self._bytes[:-_DIGEST_BYTES].data).digest()
        is_whole = self._bytes[-_DIGEST_BYTES:].tobytes() == digest
        self.header = self._read_header(start, end, is_whole=is_whole)
        self.contents = tuple(self._cut(end))
        if not is_whole:
            self._refuse(self._changed())

    def _read_header(self, start: int, end: int, *, is_whole: bool) -> _Header:
        if end > min(self._bytes.size - _DIGEST_BYTES, start + _MAX_HEADER_BYTES):
            self._refuse("its length")
        try:
            document: Any = msgspec.json.decode(self._bytes[start:end].tobytes())
            version = document.get("schema_version") if isinstance(document, dict) else None
            if is_whole and version != SCHEMA_VERSION:
                raise UnfitProgramError(
                    f"{self._where} is of format {version!r:.20}, and this version reads {SCHEMA_VERSION}; "
                    "compile it again"
                )
            return msgspec.convert(document, _Header)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnfitProgramError(self._refusal(f"its header ({error})")) from error

    def _cut(self, end: int) -> list[np.ndarray]:
        """Return the bytes of each section."""
        found = []
        for section in self.header.sections:
            start = end + -end % ALIGNMENT
            end = start + section.size
            if section.size < 0 or end > self._bytes.size - _DIGEST_BYTES:
                self._refuse(section.name)
            found.append(self._bytes[start:end])
        if end != self._bytes.size - _DIGEST_BYTES or not found:
            self._refuse("its length")
        return found

    def _changed(self) -> str:
        """Return what is not as it was saved."""
        for section, content in zip(self.header.sections, self.contents, strict=True):
            if hashlib.sha256(content.data).hexdigest() != section.sha256:
                return section.name
        return "its header or digest"

    def _refuse(self, what: str) -> None:
        raise UnfitProgramError(self._refusal(what))

    def _refusal(self, what: str) -> str:
        return f"{self._where} was changed after it was saved, in {what}; save or copy it again"

"""The one way in which every package writes an output file: whole or not at all.

A regular file is written under an unpredictable name in its own folder, forced to disk and renamed over the
target, so a reader sees the old file or the new one, and neither a planted link nor a second writer reaches
what is being written. Symbolic links are followed, dangling ones too: what they point to is replaced, and
they stay. What is no regular file (`/dev/null`, a terminal, a FIFO) is written to and stays what it is; so is
a descriptor that the process holds (`/dev/stdout`), even where it is redirected into a file. Checked in
tests/records/test_output.py.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_MAX_LINKS = 40
"""As many links in a row as the kernel follows."""


@contextmanager
def open_output(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open an output file for the body, after which it is there whole; it stays as it was if the body fails.

    Args:
        path: of the file; its folder must exist. What stands there may be a link or a special file.

    Raises:
        OSError: the folder is missing or may not be written, the path is a folder, or the disk is full; it
            names the path as given. `output_problem` says it in a sentence.
    """
    try:
        descriptor = _own_descriptor(path)
        if descriptor is not None:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                yield file
        elif _is_special(path):
            with open(path, "wb") as file:
                yield file
        else:
            with _open_replacement(Path(os.path.realpath(path))) as file:
                yield file
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from error


def write_output(path: str | os.PathLike[str], content: bytes) -> None:
    """Write an output file; see `open_output`.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    with open_output(path) as file:
        file.write(content)


def check_output(path: str | os.PathLike[str]) -> None:
    """Refuse a path that could not be written, before hours of work for it.

    Raises:
        OSError: the folder is missing or may not be written, or the path is a folder.
    """
    if _own_descriptor(path) is not None:
        return
    if _is_special(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return
    with tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))):
        pass


def output_problem(path: str | os.PathLike[str], error: OSError) -> str:
    """Return in one sentence why a file cannot be written, and what to do."""
    remedy = io_remedy(error)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        remedy += ", or make the folder first"
    return f"{os.fspath(path)} cannot be written, {io_reason(error)}; {remedy}"


def io_reason(error: OSError) -> str:
    """Return what the system says of an error with a file, as part of a sentence."""
    if error.errno == errno.ENOENT:
        return "there is no such file or folder"
    return error.strerror or type(error).__name__


def io_remedy(error: OSError) -> str:
    """Return what to do about an error with a file."""
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return "check the path"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "choose a place you may use, or change its permissions"
        case errno.EISDIR:
            return "name a file in it"
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return "free some space or choose another disk"
        case errno.ENAMETOOLONG:
            return "give it a shorter name"
        case _:
            return "check the path and the disk"


def _own_descriptor(path: str | os.PathLike[str]) -> int | None:
    """Return the number of the process's own descriptor that a path names, or None.

    Opened by name, a redirected one would be emptied, and written from its beginning.
    """
    name = os.path.abspath(path)
    for _ in range(_MAX_LINKS):
        folder, last = os.path.split(name)
        folder = os.path.realpath(folder)
        if folder in (f"/proc/{os.getpid()}/fd", "/dev/fd") and last.isdecimal():
            return _moved_to(int(last))
        name = os.path.join(folder, last)
        if not os.path.islink(name):
            return None
        name = os.path.join(folder, os.readlink(name))
    return None


def _moved_to(descriptor: int) -> int:
    """Return where a descriptor is now: the command keeps stdout elsewhere, lest libraries write to it."""
    if descriptor != 1 or sys.__stdout__ is None:
        return descriptor
    sys.__stdout__.flush()
    return sys.__stdout__.fileno()


def _is_special(path: str | os.PathLike[str]) -> bool:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return not stat.S_ISREG(mode)


@contextmanager
def _open_replacement(target: Path) -> Iterator[BinaryIO]:
    """Open a file beside the target, and rename it over the target once the body is done."""
    # The target's own name would make a long one too long.
    temporary = target.parent / f".tessel-{secrets.token_hex(8)}.part"
    # Made with the mode that a plain new file gets, by umask or the folder's own rules.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if target.exists():
                os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode) & 0o777)
            yield file
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

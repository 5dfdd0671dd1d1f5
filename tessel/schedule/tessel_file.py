"""Schedules in the files that Tessel itself writes: blocks with their devices and steps, but no dependencies.

Such a file shows a schedule; it cannot be searched or checked again, since it does not say what waits for
what. Read by `tessel.schedule.schedplan.SchedPlan.load`. Checked in tests/tessel/test_schedplan.py.
"""

from __future__ import annotations

import os

import msgspec

from tessel.documents import read_document
from tessel.errors import DocumentError


class TesselBlock(msgspec.Struct, frozen=True):
    """A block as Tessel saves it: micro-batch, costs, and where it stands."""

    mid: int
    span: int
    memory: int
    btype: str
    step: int
    device: tuple[int, ...]
    gid: int | None = None


class TesselFile(msgspec.Struct, frozen=True):
    """A whole file; `repetend` is the first step of the repeating part and the first after it."""

    ndevs: int
    blocks: tuple[TesselBlock, ...]
    repetend: tuple[int, int] | None = None


def is_tessel_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a JSON document has the key that only Tessel's files have.

    Raises:
        DocumentError: the file cannot be read.
    """
    try:
        return "ndevs" in msgspec.json.decode(read_document(path), type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return False


def load_tessel_file(path: str | os.PathLike[str]) -> TesselFile:
    """Read a file that Tessel wrote.

    Raises:
        DocumentError: the file cannot be read, or has not what Tessel writes; the message names the key.
    """
    try:
        return msgspec.json.decode(read_document(path), type=TesselFile)
    except msgspec.MsgspecError as error:
        raise DocumentError(
            f"{path} is not a schedule as Tessel saves it: {error}; save it again with SchedPlan.save"
        ) from error

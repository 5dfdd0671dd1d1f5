"""Schedules in the files that Tessel itself writes: blocks with their devices and steps, but no dependencies.

Such a file shows a schedule; it cannot be searched or checked again, since it contains no dependencies. Read
by `tessel.schedule.schedplan.SchedPlan.load`. Checked in tests/tessel/test_schedplan.py.
"""

from __future__ import annotations

import os

import msgspec

from tessel.documents import read_document
from tessel.errors import DocumentError, shown
from tessel.placement import MAX_DEVICES, MAX_MEMORY, MAX_SPAN
from tessel.validation import MAX_STEP


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
    except (msgspec.MsgspecError, RecursionError):
        return False


def load_tessel_file(path: str | os.PathLike[str]) -> TesselFile:
    """Read a file that Tessel wrote.

    Raises:
        DocumentError: the file cannot be read, or has not what Tessel writes; the message names the key.
    """
    try:
        saved = msgspec.json.decode(read_document(path), type=TesselFile)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DocumentError(
            f"{path} is not a schedule as Tessel saves it: {shown(error)}; save it again with SchedPlan.save"
        ) from error
    for block in saved.blocks:
        if (
            not 0 <= block.span <= MAX_SPAN
            or abs(block.memory) > MAX_MEMORY
            or not 0 <= block.step <= MAX_STEP
        ):
            raise DocumentError(
                f"{path} has a block of span {block.span} and memory {block.memory} at step {block.step}; "
                f"spans are 0..{MAX_SPAN}, memory at most {MAX_MEMORY}, steps 0..{MAX_STEP}"
            )
    if not 1 <= saved.ndevs <= MAX_DEVICES:
        raise DocumentError(f"{path} has {saved.ndevs} devices; a schedule has 1..{MAX_DEVICES}")
    return saved

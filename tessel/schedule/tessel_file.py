"""Schedules in the files that Tessel's own loader and runtime read: blocks with devices and steps.

Tessel's files have no dependencies. Files written here have them as the key `edges`, pairs of `gid`, which
Tessel's loader passes over: such a schedule can be checked and tightened after it is read again. Written and
read by `tessel.schedule.schedplan.SchedPlan`. Checked in tests/tessel/schedule/test_tessel_file.py against a
reader with the rules of Tessel's own.

Source: Lin et al., Tessel (HPCA 2024), whose format this is.
"""

from __future__ import annotations

import os

import msgspec

from tessel.documents import read_document
from tessel.errors import DocumentError, ScheduleError, shown
from tessel.placement import MAX_DEVICES, MAX_MEMORY, MAX_SPAN
from tessel.validation import MAX_STEP


class TesselBlock(msgspec.Struct, frozen=True):
    """A block as Tessel saves it: micro-batch, costs, and where it stands.

    Attributes:
        mid: micro-batch, >= 0.
        span: steps; Tessel's own loader refuses 0.
        memory: units added on each device; negative frees.
        btype: "forward" or "backward".
        step: when it starts.
        device: the devices it holds.
        gid: which block of a micro-batch it is; Tessel's runtime finds the part of the model by it.
    """

    mid: int
    span: int
    memory: int
    btype: str
    step: int
    device: tuple[int, ...]
    gid: int | None = None


class TesselFile(msgspec.Struct, frozen=True):
    """A whole file.

    Attributes:
        blocks: every block of every micro-batch.
        repetend: first step of one period of the repeating part, and the first after it; Tessel's own loader
            refuses None.
        edges: `gid` of a block and of one that waits for it, in the same micro-batch; not in Tessel's files.
    """

    ndevs: int
    blocks: tuple[TesselBlock, ...]
    repetend: tuple[int, int] | None = None
    edges: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> bytes:
        """Return the document that Tessel's own loader reads.

        Raises:
            ScheduleError: it has a block of span 0, which Tessel's loader refuses.
        """
        for block in self.blocks:
            if block.span < 1:
                raise ScheduleError(
                    f"a {block.btype} block of micro-batch {block.mid} has span {block.span}, which Tessel's "
                    "loader refuses; scale spans up to at least 1, or write the schedule with tessel.save"
                )
        return msgspec.json.encode(self, order="sorted")


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
    """Read a file that Tessel wrote, or `SchedPlan.save`.

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

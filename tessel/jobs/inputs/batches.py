"""A batch of micro-batches that differ, as a user writes it: in a few characters, or in a file.

    1x6,2.5x2                   six micro-batches as the placement says, then two that are 2.5 times as long

A file is a JSON document. Its classes have a factor, or figures of their own; where they have a length, the
sequence may name any length in between (`tessel.batches.lengths`):

    {"classes": [{"name": "text"}, {"name": "image", "factor": 3}], "sequence": ["text", "image", "text"]}

Checked in tests/tessel/jobs/test_batches.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tessel.batches.batch import Batch, MicroBatchClass, scaled_class
from tessel.batches.lengths import class_of_length
from tessel.documents import read_document
from tessel.errors import DocumentError, ScheduleError, UsageError, shown
from tessel.placement import Placement
from tessel.progress.manual import manual

if TYPE_CHECKING:
    from tessel.jobs.inputs.arguments import Kinds
    from tessel.profiles.profile import Profile

MAX_MICRO_BATCHES = 2**20
"""Micro-batches of a batch; more are a slip of the pen."""

_PART = re.compile(r"(\d+(?:\.\d+)?)(?:x(\d{1,7}))?")
_CLASS = re.compile(r"(.+?)(?:x(\d{1,7}))?")


def read_kinds(given: Kinds, profile: Profile) -> list[str | int]:
    """Return the class of each micro-batch of a step, as the profile calls it.

    Args:
        given: as a user wrote it.
        profile: has classes; where they are lengths, others in between are taken, too.

    Raises:
        UsageError: it is no batch of this profile.
    """
    measured = {str(each): each for each in profile.classes}
    are_lengths = all(isinstance(each, int) for each in profile.classes)
    if isinstance(given, str):
        parts = [part.strip() for part in given.split(",")]
        matches = [_CLASS.fullmatch(part) for part in parts]
        pairs = [
            (part, 1) if part in measured else (match[1] if match else part, int((match and match[2]) or 1))
            for part, match in zip(parts, matches, strict=True)
        ]
    elif isinstance(given, Mapping):
        pairs = [(str(name), count) for name, count in given.items()]
    else:
        pairs = [(str(name), 1) for name in given]
    found: list[str | int] = []
    for name, count in pairs:
        if name not in measured and not (are_lengths and re.fullmatch(r"[1-9]\d{0,8}", name)):
            raise UsageError(
                f"--batch names {shown(name)!r}, and {profile.name} was measured with "
                f"{', '.join(measured)}; write one of them and how many, {next(iter(measured))}x6"
            )
        if not 0 < count <= MAX_MICRO_BATCHES - len(found):
            raise UsageError(
                f"--batch has {count} micro-batches of {name}; give 1 to {MAX_MICRO_BATCHES} in all"
            )
        found += [measured.get(name, int(name) if are_lengths else name)] * count
    if not found:
        raise UsageError("--batch has no micro-batch; give one at least")
    return found


class ClassDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A class of a file.

    Attributes:
        name: unique; the length where it is left out.
        length: tokens, >= 1, where classes are lengths.
        factor: of the placement's figures, where the class has none of its own.
        spans: steps, one a block; with `memory`.
        memory: units, one a block.
        lags: steps, one an edge; the placement's if left out.
    """

    name: str | None = None
    length: int | None = None
    factor: float = 1.0
    spans: tuple[int, ...] | None = None
    memory: tuple[int, ...] | None = None
    lags: tuple[int, ...] | None = None


class BatchDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A batch as a file holds it.

    Attributes:
        classes: what there is.
        sequence: the class of each micro-batch: a name, or a length where classes have lengths.
    """

    classes: tuple[ClassDocument, ...]
    sequence: tuple[str | int, ...]


def read_batch(text: str, placement: Placement) -> Batch:
    """Return the batch of a file's name, or of factors.

    Raises:
        UsageError: it is neither.
        DocumentError: the file is no batch of this placement; the message names what.
    """
    if Path(text).suffix == ".json":
        return _of_file(Path(text), placement)
    parts = [_PART.fullmatch(part.strip()) for part in text.split(",")]
    if not all(parts):
        raise UsageError(
            f"--batch {shown(text)!r} is no batch; write factors and how many of each, 1x6,2.5x2, or name a "
            "file that ends in .json"
        )
    named = [(part[1], int(part[2] or 1)) for part in parts if part is not None]
    if not 1 <= sum(count for _, count in named) <= MAX_MICRO_BATCHES:
        raise UsageError(f"--batch {shown(text)!r} has no micro-batch, or more than {MAX_MICRO_BATCHES}")
    names = list(dict.fromkeys(name for name, _ in named))
    try:
        classes = tuple(scaled_class(placement, name, float(name)) for name in names)
    except ScheduleError as error:
        raise UsageError(f"--batch {shown(text)!r}: {error}") from error
    return Batch(
        classes=classes, sequence=tuple(names.index(name) for name, count in named for _ in range(count))
    )


def _of_file(path: Path, placement: Placement) -> Batch:
    try:
        document = msgspec.json.decode(read_document(path), type=BatchDocument)
        if len(document.sequence) > MAX_MICRO_BATCHES:
            raise ScheduleError(f"it has more than {MAX_MICRO_BATCHES} micro-batches")
        batch = _of_document(document, placement)
        batch.check(placement)
    except DocumentError:
        raise
    except (msgspec.MsgspecError, ScheduleError) as error:
        raise DocumentError(f"{path} is no batch: {shown(error)}; see {manual('formats.md')}") from error
    return batch


def _of_document(document: BatchDocument, placement: Placement) -> Batch:
    named: dict[str | int, MicroBatchClass] = {}
    measured: dict[int, MicroBatchClass] = {}
    for each in document.classes:
        own = _class_of(each, placement)
        if own.name in named:
            raise ScheduleError(f"class name {own.name!r} occurs twice; give each class a name of its own")
        named[own.name] = own
        if each.length is not None:
            named[each.length] = measured[each.length] = own
    classes: list[MicroBatchClass] = []
    index: dict[str | int, int] = {}
    for key in document.sequence:
        if key in index:
            continue
        if key not in named and (isinstance(key, str) or not measured):
            raise ScheduleError(f"the sequence names class {key!r}, which it does not have")
        own = named[key] if key in named else class_of_length(measured, int(key))
        if own not in classes:
            classes.append(own)
        index[key] = classes.index(own)
    return Batch(classes=tuple(classes), sequence=tuple(index[key] for key in document.sequence))


def _class_of(each: ClassDocument, placement: Placement) -> MicroBatchClass:
    if each.name is None and each.length is None:
        raise ScheduleError("a class has neither name nor length; give it one of them")
    if each.length is not None and each.length < 1:
        raise ScheduleError(f"a class has length {each.length}; a length is at least 1")
    name = str(each.length) if each.name is None else each.name
    if (each.spans is None) != (each.memory is None):
        raise ScheduleError(f"class {name!r} has only one of spans and memory; give both, or a factor")
    if each.spans is None or each.memory is None:
        if each.lags is not None:
            raise ScheduleError(f"class {name!r} has lags and no spans; give spans and memory, too")
        return scaled_class(placement, name, each.factor)
    lags = tuple(edge.lag for edge in placement.edges) if each.lags is None else each.lags
    return MicroBatchClass(name=name, spans=each.spans, memory=each.memory, lags=lags)

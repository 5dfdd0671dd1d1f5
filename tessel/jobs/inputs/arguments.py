"""Values of what users write for an option: bytes, durations, limits, shapes of tensors.

Each parser raises `UsageError` with what was found and what is expected.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from tessel.errors import UsageError

Kinds = str | Mapping[str | int, int] | Sequence[str | int]
"""Micro-batches of a step by class of a profile: `4096x6,8192x2`, a number of each, or one by one."""

_BYTES_BY_SUFFIX = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40} | {
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_BITS_BY_SUFFIX = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_SECONDS_BY_SUFFIX = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}


def check_choice(option: str, text: str, known: Iterable[str]) -> str:
    """Return the name, or refuse one that is none of those known; the message names the nearest.

    Args:
        option: what the name was given for, such as `--optimizer`.
        text: the name.
        known: those there are.
    """
    names = list(known)
    if text in names:
        return text
    near = difflib.get_close_matches(text, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? There are" if near else "choose"
    raise UsageError(f"{option} {text!r} is not known; {hint} {', '.join(names)}")


MAX_COUNT = 2**20
"""Devices, layers, samples and micro-batches of a step: at most so many."""


def check_counts(options: object, names: Iterable[str]) -> None:
    """Refuse a number below 1, or above what any job has, in options of a command; one left out is None.

    Args:
        options: the options.
        names: of the fields; `--micro-batches` is the field `micro_batches`.

    Raises:
        UsageError: there is one.
    """
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} is {value}; give at least 1")
        if value is not None and value > MAX_COUNT:
            raise UsageError(f"--{name.replace('_', '-')} is {value}; give at most {MAX_COUNT}")


def check_model(text: str) -> str:
    """Return a model's specification, or refuse a file that is not there before anything is loaded.

    Raises:
        ModelFileError: there is no such file.
    """
    path = Path(text)
    if path.suffix in (".onnx", ".pt2") and not path.exists():
        from tuner.errors import ModelFileError

        raise ModelFileError(f"cannot read {text}: No such file or directory; check the path")
    return text


def check_target(text: str) -> str:
    """Return the target's name, or refuse the address of a remote device before anything is loaded.

    The same rule as `tuner.targets.resolution.refuse_remote`, which imports TVM.
    """
    if text.startswith("rpc://"):
        raise UsageError(
            f"--target {text} is behind an RPC tracker, and only `tessel partition`, `stages` and `tune` "
            "measure there; for this command start `tessel fleet worker` on a machine that drives the "
            "device, and give --fleet with --target cpu or cuda, where it has that option"
        )
    return text


def check_remote_target(text: str) -> str:
    """Return the target's name, or refuse an address that names no device behind an RPC tracker."""
    if text.startswith("rpc://"):
        from tuner.targets.remote import parse_remote

        try:
            parse_remote(text)
        except ValueError as error:
            raise UsageError(str(error)) from error
    return text


def check_folder(option: str, path: Path | None, *, suffixes: Sequence[str] = ()) -> None:
    """Refuse a file that could not be written before anything is searched or measured, not after.

    Args:
        option: what the file was named for.
        path: where it is to be; nothing is checked where there is none.
        suffixes: those it may have; any if empty.
    """
    if path is None:
        return
    if suffixes and path.suffix not in suffixes:
        known = ", ".join(suffixes)
        raise UsageError(
            f"{option} {path} has the suffix {path.suffix or '(none)'}; end it with one of {known}"
        )
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(
            f"{option} {path} is in a folder that does not exist; make it first: mkdir -p {path.parent}"
        )
    from records.output import check_output, output_problem

    try:
        check_output(path)
    except IsADirectoryError as error:
        raise UsageError(f"{option} {path} is a folder; name a file in it") from error
    except OSError as error:
        raise UsageError(f"{option} {output_problem(path, error)}") from error


LEAST_PLAIN_BYTES = 1e6
"""Below, a number without a unit is not taken for bytes: nobody has a device of 16."""


def parse_bytes(text: str) -> int:
    """Return bytes from `16GiB`, `512MiB`, `2GB` or a plain number of bytes."""
    value = _quantity(text, _BYTES_BY_SUFFIX, "a size such as 16GiB, 512MiB or 1000000")
    if value < 1:
        raise UsageError(f"{text!r} is less than one byte; give a size such as 16GiB")
    if value < LEAST_PLAIN_BYTES and text.strip()[-1].isdigit():
        raise UsageError(f"{text!r} is {value:g} bytes, without a unit; write {value:g}GiB if so meant")
    return int(value)


def parse_duration(text: str) -> float:
    """Return seconds from `10s`, `500ms`, `2m` or a plain number of seconds."""
    seconds = _quantity(text, _SECONDS_BY_SUFFIX, "a duration such as 10s, 500ms or 2m")
    if seconds <= 0:
        raise UsageError(f"{text!r} is not a positive duration; give one such as 10s")
    return seconds


def parse_bandwidth(text: str | float) -> float:
    """Return bytes a second from `100GB/s`, `25GiB/s`, `200Gbit/s` or a number; `Gbps` are bits."""
    if not isinstance(text, str):
        text = f"{text:.0f}B/s"
    expected = "a bandwidth such as 100GB/s, 25GiB/s or 200Gbit/s"
    amount, slash, second = text.strip().rpartition("/")
    if text.strip().lower().endswith("bps"):
        amount, slash, second = text.strip()[:-2] + "it", "/", "s"
    if not slash or second.strip().lower() != "s" or not amount.strip()[-1:].isalpha():
        raise UsageError(f"{text!r} is not {expected}")
    if amount.lower().endswith("bit"):
        value = _quantity(amount, _BITS_BY_SUFFIX, expected) / 8
    else:
        value = _quantity(amount, _BYTES_BY_SUFFIX, expected)
    if not 0 < value < 1e18:
        raise UsageError(f"{text!r} carries nothing, or more than any link; give {expected}")
    return value


def parse_limits(text: str, num_devices: int) -> tuple[int, ...]:
    """Return a memory limit in units for each device from one number or one per device (`6` or `6,6,4,4`)."""
    try:
        limits = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(
            f"memory {text!r} is not a whole number, nor one per device; write 6 or 6,6,4,4"
        ) from error
    if len(limits) == 1:
        limits *= num_devices
    if len(limits) != num_devices:
        raise UsageError(
            f"memory {text!r} has {len(limits)} numbers for {num_devices} devices; give 1 or one per device"
        )
    if min(limits) < 0:
        raise UsageError(f"memory {text!r} has a negative number; limits are units >= 0")
    return tuple(limits)


def parse_spans(text: str) -> int | tuple[int, ...]:
    """Return one span, or one per stage, from `3` or `3,4,4,5`."""
    try:
        spans = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"span {text!r} is not a whole number of steps; write 3 or 3,4,4,5") from error
    if min(spans) < 0:
        raise UsageError(f"span {text!r} has a negative number; spans are steps >= 0")
    return spans[0] if len(spans) == 1 else spans


def parse_shapes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    """Return static shapes by input name from texts such as `input_ids=1,128`, one for each input."""
    found = parse_shape_choices(texts)
    if len(found) > 1:
        (name,) = sorted(name for name in found[0] if len({each[name] for each in found}) > 1)[:1]
        raise UsageError(
            f"--shape gives {name} {len(found)} shapes, and this command takes one; `tessel tune` takes "
            "several"
        )
    return found[0]


def parse_shape_choices(texts: list[str]) -> list[dict[str, tuple[int, ...]]]:
    """Return the sets of static shapes that texts name, the largest first; one set at least.

    An input that is named several times has another shape in each set; one that is named once has that in
    all of them.
    """
    shapes = _shapes_by_name(texts)
    count = max(map(len, shapes.values()), default=1)
    for name, given in shapes.items():
        if len(given) not in (1, count):
            raise UsageError(
                f"--shape gives {name} {len(given)} shapes, and another input {count}; give each input one, "
                "or as many as the others"
            )
        if len(set(given)) < len(given):
            raise UsageError(f"--shape gives {name} one shape twice; give each once")
    sets = [
        {name: given[index] if len(given) > 1 else given[0] for name, given in shapes.items()}
        for index in range(count)
    ]
    return sorted_shapes(sets)


def sorted_shapes(
    shapes: Mapping[str, tuple[int, ...]] | Sequence[Mapping[str, tuple[int, ...]]] | None,
) -> list[dict[str, tuple[int, ...]]]:
    """Return the sets of shapes that are given, one or several, the largest first; an empty one for none."""
    sets = [shapes or {}] if shapes is None or isinstance(shapes, Mapping) else list(shapes)
    listed = [{name: tuple(shape) for name, shape in each.items()} for each in sets]
    return sorted(listed, key=lambda each: -sum(map(math.prod, each.values())))


def describe_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return shapes as they are given, such as `input_ids=1,128`."""
    return " ".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items())


def parse_values(texts: list[str]) -> dict[str, bool | int | float]:
    """Return values by input name from texts such as `use_cache_branch=false`, one for each input."""
    values: dict[str, bool | int | float] = {}
    for text in texts:
        name, _, written = text.partition("=")
        value = _scalar(written)
        if not name or value is None:
            raise UsageError(
                f"value {text!r} is not NAME=VALUE with a number, true or false; write sample_rate=16000"
            )
        if name in values:
            raise UsageError(f"--value gives {name} twice; give it once")
        values[name] = value
    return values


def _scalar(text: str) -> bool | int | float | None:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text) if re.fullmatch(r"[+-]?\d{1,19}", text) else _finite(float(text))
    except ValueError:
        return None


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _shapes_by_name(texts: list[str]) -> dict[str, list[tuple[int, ...]]]:
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for text in texts:
        name, equals, extents = text.partition("=")
        if not equals or not name or not re.fullmatch(r"\d+(,\d+)*", extents):
            raise UsageError(f"shape {text!r} is not NAME=EXTENT,EXTENT,…; write input_ids=1,128")
        shape = tuple(int(extent) for extent in extents.split(","))
        shapes.setdefault(name, []).append(shape)
    return shapes


def parse_degrees(
    option: str, given: int | str | Sequence[int] | None
) -> int | tuple[int, ...] | Literal["own"] | None:
    """Return one degree, or one a stage, from `8`, `8,8,4` or `8x2,4`; `own` and None as they are."""
    if given is None or isinstance(given, int):
        return given
    text = given if isinstance(given, str) else ",".join(map(str, given))
    if text.strip() == "own":
        return "own"
    found = [re.fullmatch(r"\s*([1-9]\d{0,5})(?:x([1-9]\d{0,3}))?\s*", part) for part in text.split(",")]
    degrees = tuple(int(each[1]) for each in found if each is not None for _ in range(int(each[2] or 1)))
    if None in found:
        raise UsageError(f"{option} {text!r} are no degrees; write 8, one for each stage as 8,8,4x6, or own")
    return degrees[0] if len(degrees) == 1 else degrees


def parse_names(text: str | None) -> tuple[str, ...] | None:
    """Return names from a comma-separated list; None where none was given."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError("the list of names is empty; give at least one, separated by commas")
    return names


def _quantity(text: str, factors: dict[str, float] | dict[str, int], expected: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    factor = factors.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise UsageError(f"{text!r} is not {expected}")
    return float(match.group(1)) * factor


def parse_cuts(option: str, text: str) -> tuple[tuple[int, int], ...]:
    """Return the first and last layer of each stage, inclusive, from a text such as `0-5,6-11,12`."""
    found = [re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part) for part in text.split(",")]
    if None in found:
        raise UsageError(
            f"{option} {text!r} are no layers of stages; write the first and the last of each, 0-5,6-11"
        )
    return tuple((int(match[1]), int(match[2] or match[1])) for match in found if match is not None)

"""Import and export of TVM's MetaSchedule databases, without TVM.

TVM keeps a folder of two files of JSON Lines: `database_workload.json` with one `[structural hash, module]`
per line, the module being TVM's own serialisation in base64, and `database_tuning_record.json` with
`[workload index, [trace, seconds or null, target, arguments]]`. Such a record becomes a measurement by the
backend `metaschedule` whose settings are the trace, of a workload with one opaque operator that carries hash
and module; neither is interpreted here, so nothing in the files is run.

TVM does not record on which device, with how many threads or with which version it measured. The environment
of an imported record says `unknown` instead, so that no exact look-up finds it by mistake. On export, seconds
may differ from the imported ones by one unit in the last place, and only records imported from TVM can be
exported. Checked in tests/records/files/test_metaschedule.py, there also against TVM itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import msgspec

from records.environment import Environment
from records.errors import RecordError, RecordFileError
from records.files.lines import read_lines
from records.limits import MAX_INTEGER
from records.measurement import Measurement, Status
from records.output import open_output, output_problem
from records.record import Record
from records.workload import Operator, Role, Tensor, Workload, describe

BACKEND = "metaschedule"
OPERATOR = "metaschedule.task"

WORKLOAD_FILE = "database_workload.json"
RECORD_FILE = "database_tuning_record.json"

FAILED_SECONDS = 1e9
"""TVM writes 1e10 seconds for a candidate that failed; nothing that ran took thirty years."""

T = TypeVar("T")

_OPAQUE = 8
_MAX_REASON = 300
_MODULE = "tvm_module"
_HASH = "structural_hash"


def read_database(folder: str | os.PathLike[str]) -> Iterator[tuple[Workload, Measurement]]:
    """Yield the measurements of a MetaSchedule database; entries that were never run are left out.

    Args:
        folder: the work directory that TVM was given.

    Raises:
        RecordFileError: a file cannot be read, or a line is none of TVM's; the line is named.
    """
    root = Path(folder)
    with _open(root / WORKLOAD_FILE) as workload_file, _open(root / RECORD_FILE) as record_file:
        table = _WorkloadTable(workload_file)
        for number, (_, line) in enumerate(read_lines(record_file, str(root / RECORD_FILE)), start=1):
            entry = _decode(line, _Entry, f"{root / RECORD_FILE}, line {number}")
            if entry.result.seconds is not None:
                yield _measurement(entry, table, f"{root / RECORD_FILE}, line {number}")


def write_database(records: Iterable[Record], folder: str | os.PathLike[str]) -> int:
    """Write the records that came from a MetaSchedule database as one; leave out all others.

    Args:
        records: any records.
        folder: a folder without such files; made where it is missing.

    Returns:
        The number of records written.

    Raises:
        RecordError: the folder holds a database already, or cannot be written.
    """
    root = Path(folder)
    if (root / WORKLOAD_FILE).exists() or (root / RECORD_FILE).exists():
        raise RecordError(
            f"{root} holds a MetaSchedule database already, and would be overwritten; name another folder"
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
        with open_output(root / WORKLOAD_FILE) as workloads, open_output(root / RECORD_FILE) as entries:
            return _write(records, workloads, entries)
    except OSError as error:
        raise RecordError(f"the MetaSchedule database in {output_problem(root, error)}") from error


class Trial(NamedTuple):
    """One schedule that MetaSchedule tried for a kernel.

    Attributes:
        task: names the kernel: TVM's structural hash of its module.
        module: TVM's own serialisation of the kernel's module, in base64.
        trace: the schedule, as TVM's own JSON.
    """

    task: str
    module: str
    trace: str


def describe_trial(trial: Trial, tensors: Sequence[Tensor]) -> Workload:
    """Return the workload under which all trials of one kernel are kept; a trial's trace is its settings.

    Args:
        trial: any trial of the kernel.
        tensors: the kernel's arguments, the result last.
    """
    return _task_workload("task", trial.task, trial.module, tensors)


def trial_of(record: Record) -> Trial | None:
    """Return the trial that a record is of; None where it is of something else."""
    module = _module(record.workload)
    if module is None or record.measurement.backend != BACKEND:
        return None
    return Trial(module.structural_hash, module.text, record.measurement.settings)


class _Argument(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    kind: str
    dtype: str
    shape: tuple[int, ...]


class _Result(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    trace: msgspec.Raw
    seconds: tuple[float, ...] | None
    target: dict[str, object]
    arguments: tuple[_Argument, ...]


class _Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    workload_index: int
    result: _Result


class _Module(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    structural_hash: str
    text: str


class _WorkloadTable:
    """The modules of a database by their index, read when they are asked for: all may not fit into memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._name = str(file.name)
        self._offsets = [offset for offset, _ in read_lines(file, self._name)]
        self._last: tuple[int, _Module] | None = None

    def get(self, index: int, place: str) -> _Module:
        if self._last is not None and self._last[0] == index:
            return self._last[1]
        if not 0 <= index < len(self._offsets):
            raise RecordFileError(
                f"{place}: workload {index} is none of the {len(self._offsets)} in {self._name}; copy both "
                "files of the database together"
            )
        self._file.seek(self._offsets[index])
        _, line = next(read_lines(self._file, self._name))
        self._last = index, _decode(line, _Module, f"{self._name}, line {index + 1}")
        return self._last[1]


def _measurement(entry: _Entry, table: _WorkloadTable, place: str) -> tuple[Workload, Measurement]:
    module = table.get(entry.workload_index, place)
    seconds = entry.result.seconds or ()
    failed = not seconds or max(seconds) >= FAILED_SECONDS
    try:
        workload = _workload(module, entry.result.arguments)
        measurement = Measurement(
            workload_fingerprint=workload.fingerprint,
            backend=BACKEND,
            target=msgspec.json.encode(entry.result.target, order="sorted").decode(),
            environment=_unknown_environment(entry.result.target),
            status=Status.ERROR if failed else Status.OK,
            samples_us=() if failed else tuple(second * 1e6 for second in seconds),
            settings=bytes(entry.result.trace).decode(),
            message="TVM recorded a failure without its reason" if failed else "",
        )
    except (ValueError, OverflowError) as error:
        raise RecordFileError(f"{place}: not a tuning record ({error}); remove the line") from error
    return workload, measurement


def _workload(module: _Module, arguments: tuple[_Argument, ...]) -> Workload:
    """Return a workload that names the task; by TVM's convention, the last argument is the result."""
    if not arguments or any(argument.kind != "TENSOR" for argument in arguments):
        raise ValueError("its arguments are not tensors; only tasks over tensors can be kept")
    tensors = [Tensor(argument.shape, argument.dtype) for argument in arguments]
    return _task_workload("kernel", module.structural_hash, module.text, tensors)


def _task_workload(role: Role, structural_hash: str, module: str, tensors: Sequence[Tensor]) -> Workload:
    operator = Operator(
        name=OPERATOR,
        kind=_OPAQUE,
        inputs=tuple(range(len(tensors) - 1)),
        outputs=(tensors[-1],),
        attributes=((_HASH, structural_hash),),
    )
    return describe(role, tensors[:-1], [operator], [len(tensors) - 1], [(_MODULE, module)])


def _unknown_environment(target: dict[str, object]) -> Environment:
    kind = "cuda" if target.get("kind") == "cuda" else "cpu"
    num_cores = target.get("num-cores")
    known = isinstance(num_cores, int) and 0 < num_cores <= MAX_INTEGER
    return Environment(
        device_kind=kind,
        device_model="unknown",
        num_cores=int(str(num_cores)) if known else 1,
        num_threads=int(str(num_cores)) if known and kind == "cpu" else 1,
        driver="unknown",
        versions=(),
    )


def _write(records: Iterable[Record], workloads: BinaryIO, entries: BinaryIO) -> int:
    index_by_fingerprint: dict[str, int] = {}
    written = 0
    for record in records:
        module = _module(record.workload)
        if record.measurement.backend != BACKEND or module is None:
            continue
        fingerprint = record.measurement.workload_fingerprint
        if fingerprint not in index_by_fingerprint:
            index_by_fingerprint[fingerprint] = len(index_by_fingerprint)
            workloads.write(msgspec.json.encode(module) + b"\n")
        entries.write(_entry(record, index_by_fingerprint[fingerprint]) + b"\n")
        written += 1
    return written


def _module(workload: Workload) -> _Module | None:
    """Return what TVM needs of a workload, or None where it did not come from TVM."""
    if [operator.name for operator in workload.operators] != [OPERATOR]:
        return None
    structural_hash = dict(workload.operators[0].attributes).get(_HASH)
    text = dict(workload.parameters).get(_MODULE)
    return _Module(structural_hash, text) if structural_hash is not None and text is not None else None


def _entry(record: Record, workload_index: int) -> bytes:
    measurement = record.measurement
    seconds = tuple(sample / 1e6 for sample in measurement.samples_us) or (1e10,)
    arguments = tuple(_Argument("TENSOR", value.dtype, value.shape) for value in record.workload.values)
    target = msgspec.json.decode(measurement.target, type=dict[str, object])
    result = _Result(msgspec.Raw(measurement.settings.encode()), seconds, target, arguments)
    return msgspec.json.encode(_Entry(workload_index, result))


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise RecordFileError(
            f"{path} cannot be read ({error.strerror}); name the work directory that MetaSchedule was given"
        ) from error


def _decode(line: bytes, kind: type[T], place: str) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except (ValueError, RecursionError) as error:
        reason = str(error)[:_MAX_REASON]
        raise RecordFileError(
            f"{place}: not a line of a MetaSchedule database ({reason}); remove it, or name another folder"
        ) from error

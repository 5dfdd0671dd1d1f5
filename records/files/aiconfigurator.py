"""Import of the kernels that aiconfigurator's authors measured on data-centre GPUs, as tables or as records.

A folder holds parquet files, one row a kernel: matrix products (`gemm_perf`), attention over a context
(`context_attention_perf`), products of experts (`moe_perf`), NCCL's collectives (`nccl_perf`) and DeepEP's
exchanges of tokens (`wideep_deepep_normal_perf`); whatever their folders and the first part of their names,
other files are passed over. Device, data type, framework and version are columns, and are kept; nothing of
them is taken for a device that is here. Latencies are milliseconds, DeepEP's microseconds; a collective's
size is in elements. Every value is checked before the first is returned: a row whose latency is off by
hundreds from rows of like work is taken for one in another unit, and refused. Needs the extra `parquet`.
Checked in tests/records/files/test_aiconfigurator.py.

Source: NVIDIA, ai-dynamo/aiconfigurator, `aic-core/src/aiconfigurator_core/systems/data`, Apache-2.0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from records.environment import Environment
from records.errors import RecordError, RecordFileError
from records.measurement import Measurement, Status
from records.workload import Operator, Tensor, Workload

if TYPE_CHECKING:
    import pyarrow

Kind = Literal["product", "attention", "experts", "collective", "exchange"]
Column = npt.NDArray[Any]

BYTES_BY_DTYPE: Mapping[str, float] = {
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4 / 128,
    "int8": 1.0,
    "nvfp4": 0.5 + 1 / 16,
    "w4a16_mxfp4": 0.5 + 1 / 32,
    "int4_wo": 0.5 + 2 / 128,
}
"""Bytes of a weight with its share of a scale: of 128 elements in fp8 blocks and in int4, 16 in nvfp4, 32 in
mxfp4. The last two multiply bfloat16 activations."""

MAX_EXTENT = 2**40
_NAMES = {"half": "float16", "float8_e4m3fn": "fp8"}
_STORED = {
    "fp8": "float8_e4m3fn",
    "fp8_block": "float8_e4m3fn",
    "nvfp4": "uint4",
    "w4a16_mxfp4": "uint4",
    "int4_wo": "int4",
}
"""Types of records' tensors, where the name differs; the name itself stays among the parameters."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_DISTRIBUTIONS = {"balanced": 0.0, "power_law_1.01": 1.01, "power_law_1.2": 1.2}
_MAX_TEXT = 100
_MOST_APART = 150.0
"""Factor from the median of rows of like work; in the million rows published at most 41."""
_FEW = 8
"""Rows of like work below which their median would be a guess."""
_OPAQUE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Measured kernels of one kind; every array has an element for each.

    Attributes:
        texts: `device`, `framework`, `version`, `source` (the library's name of the kernel) and `dtype` of
            each; of attention `kv_dtype`, of a collective or an exchange `operation`.
        numbers: extents, by the names of `cost_model.gpu.typed.kernels`.
        latency_us: microseconds.
    """

    kind: Kind
    path: Path
    texts: Mapping[str, Column]
    numbers: Mapping[str, Column]
    latency_us: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.latency_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Columns of one kind of file: ours, with theirs."""

    kind: Kind
    dtype: str
    numbers: Mapping[str, str]
    latency: str = "latency"
    unit_us: float = 1e3
    operation: str = ""


_EXCHANGE = {
    "nodes": "node_num",
    "hidden": "hidden_size",
    "tokens": "num_token",
    "top_k": "num_topk",
    "experts": "num_experts",
}
_LAYOUTS: Mapping[str, tuple[_Layout, ...]] = {
    "gemm_perf": (
        _Layout(kind="product", dtype="gemm_dtype", numbers={"rows": "m", "columns": "n", "inner": "k"}),
    ),
    "context_attention_perf": (
        _Layout(
            kind="attention",
            dtype="attn_dtype",
            numbers={
                "batch": "batch_size",
                "length": "isl",
                "past": "step",
                "heads": "num_heads",
                "kv_heads": "num_key_value_heads",
                "head_size": "head_dim",
                "window": "window_size",
            },
        ),
    ),
    "moe_perf": (
        _Layout(
            kind="experts",
            dtype="moe_dtype",
            numbers={
                "tokens": "num_tokens",
                "hidden": "hidden_size",
                "inner": "inter_size",
                "top_k": "topk",
                "experts": "num_experts",
                "tensor_parallel": "moe_tp_size",
                "expert_parallel": "moe_ep_size",
            },
        ),
    ),
    "nccl_perf": (
        _Layout(
            kind="collective",
            dtype="nccl_dtype",
            numbers={"devices": "num_gpus", "elements": "message_size"},
            operation="op_name",
        ),
    ),
    "wideep_deepep_normal_perf": tuple(
        _Layout(
            kind="exchange",
            dtype="",
            numbers={**_EXCHANGE, "multiprocessors": f"{phase}_sms"},
            latency=f"{phase}_transmit_us",
            unit_us=1.0,
            operation=phase,
        )
        for phase in ("dispatch", "combine")
    ),
}
_MAY_BE_ZERO = frozenset(("past", "window"))
_MAY_LACK = frozenset(("window_size",))
_OPERATIONS = {"alltoall": "all_to_all"}


def read_tables(folder: str | os.PathLike[str]) -> Iterator[KernelTable]:
    """Yield the tables of a folder in the order of their files, each checked completely.

    Args:
        folder: the repository, its `data` folder or any part of it.

    Raises:
        RecordFileError: there is no such file, one cannot be read, or a row is wrong; it is named.
        RecordError: no reader of parquet files is installed.
    """
    paths = [path for path in sorted(Path(folder).rglob("*_perf.parquet")) if _layouts(path)]
    if not paths:
        raise RecordFileError(
            f"{folder} holds no tables of aiconfigurator (…/*gemm_perf.parquet and the like); name its "
            "folder `systems/data`, fetched with Git LFS"
        )
    for path in paths:
        yield from read_table(path)


def read_table(path: Path) -> Iterator[KernelTable]:
    """Yield what one file holds; DeepEP's files hold dispatches and combinations.

    Raises:
        RecordFileError: it cannot be read, or a row is wrong; it is named.
        RecordError: no reader of parquet files is installed.
    """
    table = _parquet(path)
    for layout in _layouts(path):
        yield _Reader(path, table, layout).read()


def read_aiconfigurator(folder: str | os.PathLike[str]) -> Iterator[tuple[Workload, Measurement]]:
    """Yield the measured kernels of all tables as records; see `read_tables`."""
    for table in read_tables(folder):
        yield from _records(table)


def _layouts(path: Path) -> tuple[_Layout, ...]:
    return next((found for name, found in _LAYOUTS.items() if path.stem.endswith(name)), ())


def _parquet(path: Path) -> pyarrow.Table:
    try:
        # An optional library, and the largest of all that are used: only this importer needs it.
        from pyarrow import ArrowException  # noqa: PLC0415
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415
    except ImportError as error:
        raise RecordError(
            "reading parquet files needs pyarrow, which is not installed; pip install 'tessel-tuner[parquet]'"
        ) from error
    try:
        with ParquetFile(path) as file:
            return file.read()
    except (OSError, ArrowException) as error:
        reason = " ".join(str(error).split())[:300]
        raise RecordFileError(
            f"{path} cannot be read as parquet ({reason}); fetch it again, with Git LFS"
        ) from error


@dataclass(frozen=True, slots=True)
class _Reader:
    """One file and what is read of it."""

    path: Path
    table: pyarrow.Table
    layout: _Layout

    def read(self) -> KernelTable:
        layout = self.layout
        numbers = {name: self._whole(name, column) for name, column in layout.numbers.items()}
        texts = {name: self._text(column) for name, column in _TEXTS.items()}
        texts["dtype"] = self._dtypes(layout.dtype) if layout.dtype else self._constant("bfloat16")
        if layout.kind == "attention":
            texts["kv_dtype"] = self._dtypes("kv_cache_dtype")
        if layout.kind == "experts":
            found = self._known(self._text("distribution"), _DISTRIBUTIONS, "distribution")
            numbers["skew"] = np.array([_DISTRIBUTIONS[name] for name in found])
        if layout.kind == "collective":
            found = _renamed(self._text(layout.operation), _OPERATIONS)
            texts["operation"] = self._known(found, COLLECTIVES, layout.operation)
        if layout.kind == "exchange":
            texts["operation"] = self._constant(layout.operation)
        latency_us = self._latencies()
        table = KernelTable(
            kind=layout.kind, path=self.path, texts=texts, numbers=numbers, latency_us=latency_us
        )
        self._check_units(table)
        return table

    def _constant(self, text: str) -> Column:
        return np.full(self.table.num_rows, text, dtype=object)

    def _column(self, name: str) -> Column:
        if name not in self.table.column_names:
            raise RecordFileError(f"{self.path}: there is no column {name!r}; fetch the table again")
        column = self.table.column(name)
        self._refuse(np.asarray(column.is_null()), lambda row: f"{name} is missing")
        return np.asarray(column.to_numpy())

    def _text(self, name: str) -> Column:
        column = self._column(name).astype(object)
        for text in set(column):
            if not isinstance(text, str) or not text or len(text) > _MAX_TEXT or not text.isprintable():
                self._refuse(column == text, lambda row: f"{name} is no short printable text")
        return column

    def _whole(self, name: str, column: str) -> Column:
        if column in _MAY_LACK and column not in self.table.column_names:
            return np.zeros(self.table.num_rows, np.int64)
        found = self._column(column)
        if found.dtype.kind not in "iu":
            raise RecordFileError(
                f"{self.path}: column {column} holds no whole numbers; fetch the table again"
            )
        least = 0 if name in _MAY_BE_ZERO else 1
        self._refuse(
            (found < least) | (found > MAX_EXTENT),
            lambda row: f"{column} is {found[row]}, and {least} to 2⁴⁰ is possible",
        )
        return found.astype(np.int64)

    def _dtypes(self, name: str) -> Column:
        return self._known(_renamed(self._text(name), _NAMES), BYTES_BY_DTYPE, name)

    def _known(self, found: Column, names: Mapping[str, float] | tuple[str, ...], column: str) -> Column:
        for text in set(found) - set(names):
            self._refuse(found == text, lambda row: f"{column} {found[row]!r} is none of {', '.join(names)}")
        return found

    def _latencies(self) -> npt.NDArray[np.float64]:
        name = self.layout.latency
        found = self._column(name)
        if found.dtype.kind not in "fiu":
            raise RecordFileError(f"{self.path}: column {name} holds no numbers; fetch the table again")
        found = found.astype(np.float64)
        self._refuse(
            ~((found > 0) & (found < np.inf)),
            lambda row: f"{name} {found[row]} is no positive finite latency",
        )
        return found * self.layout.unit_us

    def _check_units(self, table: KernelTable) -> None:
        groups = _like_work(table)
        order = np.argsort(groups, kind="stable")
        logs = np.log(table.latency_us)
        for members in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
            if len(members) < _FEW:
                continue
            apart = np.abs(logs[members] - np.median(logs[members]))
            if apart.max() > np.log(_MOST_APART):
                bad = np.zeros(len(table), bool)
                bad[members[apart > np.log(_MOST_APART)]] = True
                usual = float(np.exp(np.median(logs[members]))) / self.layout.unit_us
                self._refuse(
                    bad,
                    lambda row, usual=usual: (
                        f"{self.layout.latency} {table.latency_us[row] / self.layout.unit_us:g} is more than "
                        f"{_MOST_APART:g} times apart from {usual:g} of rows of like work, as if it were in "
                        "another unit"
                    ),
                )

    def _refuse(self, is_bad: Column, said: Any) -> None:  # Callable[[int], str]
        """Refuse the first row that is bad, as the line of a table is named: from 1."""
        if is_bad.any():
            row = int(np.argmax(is_bad))
            raise RecordFileError(
                f"{self.path}, row {row + 1}: {said(row)}; correct it or fetch the table again"
            )


_TEXTS = {"device": "device", "framework": "framework", "version": "version", "source": "kernel_source"}


def _renamed(found: Column, names: Mapping[str, str]) -> Column:
    return np.array([names.get(text, text) for text in found], dtype=object)


def _like_work(table: KernelTable) -> Column:
    """Return a number for each kernel, equal where they do about the same work on one device."""
    numbers = {name: np.maximum(values, 1).astype(np.float64) for name, values in table.numbers.items()}
    keys = [codes_of(column) for column in table.texts.values()]
    logs = [np.log2(values) for name, values in numbers.items() if name != "skew"]
    if table.kind == "product":
        rows, columns, inner = logs
        keys += [
            np.round(rows + columns + inner),
            np.round(np.log2(2.0**rows + 2.0**columns)),
            np.round(inner),
        ]
    elif table.kind == "attention":
        batch, length, past, heads, *_ = logs
        keys += [np.round(batch + heads), np.round(length), np.round(past)]
    elif table.kind == "experts":
        keys += [np.round(values) for values in (logs[0], logs[1] + logs[2] - logs[5], logs[4] - logs[6])]
    else:
        keys += [np.round(values) for values in logs]
    return equal_rows([np.asarray(key, np.int64) for key in keys])


def equal_rows(columns: Sequence[Column]) -> Column:
    """Return a number for each row of columns of whole numbers from 0, equal for equal rows."""
    groups = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        groups = np.unique(groups * (column.max(initial=0) + 1) + column, return_inverse=True)[1]
    return groups


def codes_of(column: Column) -> Column:
    """Return a number for each value, equal for equal ones; sorting a million texts would take seconds."""
    number_of = {value: number for number, value in enumerate(dict.fromkeys(column.tolist()))}
    return np.array([number_of[value] for value in column.tolist()], np.int64)


def _records(table: KernelTable) -> Iterator[tuple[Workload, Measurement]]:
    names = {name: values.tolist() for name, values in (*table.texts.items(), *table.numbers.items())}
    environments: dict[tuple[str, ...], Environment] = {}
    for row, latency_us in enumerate(table.latency_us.tolist()):
        values = {name: column[row] for name, column in names.items()}
        key = tuple(values[name] for name in _TEXTS)
        device, framework, version, source = key
        if key not in environments:
            environments[key] = Environment(
                device_kind="cuda" if "NVIDIA" in device else "xpu",
                device_model=device,
                num_cores=0,  # the tables do not say
                num_threads=1,
                driver="unknown",
                versions=((framework.lower(), version),),
            )
        workload = kernel_workload(
            table.kind, {name: value for name, value in values.items() if name not in _TEXTS}
        )
        environment = environments[key]
        yield (
            workload,
            Measurement(
                workload_fingerprint=workload.fingerprint,
                backend=framework.lower(),
                settings=f"source=aiconfigurator kernel={source}",
                target=f"{environment.device_kind} {device}",
                environment=environment,
                status=Status.OK,
                samples_us=(latency_us,),
            ),
        )


def kernel_workload(kind: Kind, values: Mapping[str, Any]) -> Workload:
    """Return the workload of a kernel: one operator, with all that was said of it among the parameters.

    Args:
        kind: what it computes.
        values: a value of each of the kind's texts and numbers, as `KernelTable` names them.
    """
    inputs, output, flops = _TENSORS[kind](values)
    operator = Operator(
        name={"product": "matmul", "attention": "nn.attention", "experts": "moe"}.get(
            kind, str(values.get("operation"))
        ),
        kind=_OPAQUE if kind != "product" else 4,
        inputs=tuple(range(len(inputs))),
        outputs=(output,),
        flops=flops,
    )
    facts = {"kind": kind} | {name: str(value) for name, value in values.items()}
    return Workload(
        role="kernel",
        inputs=inputs,
        operators=(operator,),
        results=(len(inputs),),
        parameters=tuple(sorted(facts.items())),
    )


_Tensors = tuple[tuple[Tensor, ...], Tensor, int]


def _tensor(dtype: str, *shape: int, constant: bool = False) -> Tensor:
    return Tensor(shape, _STORED.get(dtype, dtype), constant)


def _product(values: Mapping[str, Any]) -> _Tensors:
    rows, columns, inner, dtype = (values[name] for name in ("rows", "columns", "inner", "dtype"))
    operands = _tensor(dtype, rows, inner), _tensor(dtype, inner, columns, constant=True)
    return operands, _tensor("bfloat16", rows, columns), 2 * rows * columns * inner


def _attention(values: Mapping[str, Any]) -> _Tensors:
    batch, length, past, heads, kv_heads, size, window = (
        values[name] for name in ("batch", "length", "past", "heads", "kv_heads", "head_size", "window")
    )
    query = _tensor(values["dtype"], batch, length, heads, size)
    cache = _tensor(values["kv_dtype"], batch, length + past, kv_heads, size)
    reach = window or length + past
    pairs = sum_of_pairs(length, past, reach)
    return (
        (query, cache, cache),
        _tensor("bfloat16", batch, length, heads, size),
        4 * batch * heads * size * pairs,
    )


def sum_of_pairs(length: int, past: int, reach: int) -> int:
    """Return how many keys all queries of a sequence see: those before them, `reach` at most."""
    ramp = max(0, min(length, reach - past))
    return ramp * past + ramp * (ramp + 1) // 2 + (length - ramp) * reach


def _experts(values: Mapping[str, Any]) -> _Tensors:
    tokens, hidden, dtype = values["tokens"], values["hidden"], values["dtype"]
    experts = max(1, values["experts"] // values["expert_parallel"])
    inner = max(1, values["inner"] // values["tensor_parallel"])
    weights = _tensor(dtype, experts, 3, hidden, inner, constant=True)
    flops = 6 * tokens * values["top_k"] * hidden * inner // values["expert_parallel"]
    return (_tensor("bfloat16", tokens, hidden), weights), _tensor("bfloat16", tokens, hidden), flops


def _collective(values: Mapping[str, Any]) -> _Tensors:
    tensor = _tensor(values["dtype"], values["elements"])
    return (tensor,), tensor, 0


def _exchange(values: Mapping[str, Any]) -> _Tensors:
    tensor = _tensor("bfloat16", values["tokens"], values["hidden"])
    return (tensor,), tensor, 0


_TENSORS = {
    "product": _product,
    "attention": _attention,
    "experts": _experts,
    "collective": _collective,
    "exchange": _exchange,
}

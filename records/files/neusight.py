"""Import of the kernels that NeuSight's authors measured on GPUs, as records.

Their folder holds tables of CSV, one row a kernel: `dataset/train/collect/OP/VERSION/DEVICE.csv` and
`dataset/test/OP.csv`. A kernel is one call of torch in float32 (`bmm` with B, M, N, K: M × N by N × K;
`linear` with a bias; element-wise ones, `ln` and `softmax` on B × H), its latency in milliseconds. The device
is the one that the row names; nothing of it is taken for a device that is here. Checked in
tests/records/files/test_neusight.py.

Source: Lee et al., "Forecasting GPU Performance for Deep Learning Training and Inference", ASPLOS 2025; data
under the MIT licence.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from records.environment import Environment
from records.errors import RecordFileError
from records.measurement import Measurement, Status
from records.workload import Operator, Tensor, Workload, describe

BACKEND = "torch"
MAX_EXTENT = 2**40
_MAX_CELLS = 100
_ELEMENTWISE, _BROADCAST, _INJECTIVE, _REDUCTION, _ANCHOR = range(5)
_TWO_OPERANDS = {"add": "add", "mul": "multiply", "div": "divide", "pow": "power"}
_BY_A_NUMBER = {f"{name}u": operator for name, operator in _TWO_OPERANDS.items()}
_ONE_OPERAND = {"relu": "nn.relu", "gelu": "nn.gelu", "tanh": "tanh"}
_BY_ROWS = {"ln": "nn.layer_norm", "softmax": "nn.softmax"}
OPERATORS = ("bmm", "linear", *_TWO_OPERANDS, *_BY_A_NUMBER, *_ONE_OPERAND, *_BY_ROWS)
"""What is read; other tables of the folder (convolutions, merged ones) are passed over."""


def read_neusight(folder: str | os.PathLike[str]) -> Iterator[tuple[Workload, Measurement]]:
    """Yield the measured kernels of all tables in the order of their files.

    Args:
        folder: the repository, its `data` folder, or one of `dataset`.

    Raises:
        RecordFileError: there is no table, one cannot be read, or a row is wrong; it is named.
    """
    tables = _tables(Path(folder))
    if not tables:
        raise RecordFileError(
            f"{folder} holds no tables of NeuSight (dataset/train/collect/OP/VERSION/DEVICE.csv); name the "
            "folder of its repository"
        )
    for path in tables:
        yield from read_table(path)


def read_table(path: Path) -> Iterator[tuple[Workload, Measurement]]:
    """Yield the measured kernels of one table; rows of operators that are not read are passed over.

    Raises:
        RecordFileError: it cannot be read, or a row is wrong.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                if row.get("OPName") in OPERATORS:
                    try:
                        yield _record(row)
                    except (KeyError, TypeError, ValueError) as error:
                        raise RecordFileError(
                            f"{path}, line {number}: {_reason(error)}; fetch the table again"
                        ) from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordFileError(f"{path} cannot be read as a table ({error}); fetch it again") from error


def _tables(folder: Path) -> list[Path]:
    for root in (folder, folder / "dataset", folder / "data/dataset", folder / "scripts/asplos/data/dataset"):
        found = sorted(root.glob("train/collect/*/*/*.csv")) + sorted(root.glob("test/*.csv"))
        # Rows of the merged tables are in the others, or in none that is measured alike.
        chosen = [path for path in found if path.parent.name != "test" or path.stem in _TEST_TABLES]
        if chosen:
            return chosen
    return []


_TEST_TABLES = frozenset(("bmm", "linear", "elem", "ln", "softmax"))


def _record(row: Mapping[str, str]) -> tuple[Workload, Measurement]:
    workload = kernel_workload(row["OPName"], _extents(row))
    environment = Environment(
        device_kind="cuda",
        device_model=_text(row, "Device"),
        num_cores=0,  # their tables do not say
        num_threads=1,
        driver=f"CUDA {_text(row, 'CUDA Version')}",
        versions=(("cudnn", _text(row, "CUDNN Version")), ("torch", _text(row, "Torch Version").lstrip("p"))),
    )
    measurement = Measurement(
        workload_fingerprint=workload.fingerprint,
        backend=BACKEND,
        settings="source=NeuSight",
        target=f"cuda {environment.device_model}",
        environment=environment,
        status=Status.OK,
        samples_us=(float(row["Latency"]) * 1e3,),
    )
    return workload, measurement


def _text(row: Mapping[str, str], column: str) -> str:
    text = row[column]
    if not text or len(text) > _MAX_CELLS or not text.isprintable():
        raise ValueError(f"column {column} is no short printable text")
    return text


def _extents(row: Mapping[str, str]) -> tuple[int, ...]:
    columns = ("B", "M", "N", "K") if row["OPName"] in ("bmm", "linear") else ("B", "H")
    extents = tuple(int(row[column]) for column in columns)
    if not all(0 < extent <= MAX_EXTENT for extent in extents):
        raise ValueError(f"extents {extents} are not all from 1 to 2⁴⁰")
    return extents


def kernel_workload(name: str, extents: tuple[int, ...]) -> Workload:
    """Return the workload of one of their kernels.

    Args:
        name: one of `OPERATORS`.
        extents: B, M, N, K of a product, B, H of any other.
    """
    if name == "bmm":
        return _batched_product(*extents)
    if name == "linear":
        return _linear(*extents[1:])
    tensor = Tensor(extents, "float32")
    count = tensor.num_elements
    if name in _BY_ROWS:
        vector = Tensor(extents[1:], "float32", constant=True)
        inputs = (tensor, vector, vector) if name == "ln" else (tensor,)
        operator = Operator(
            name=_BY_ROWS[name],
            kind=_REDUCTION,
            inputs=tuple(range(len(inputs))),
            outputs=(tensor,),
            attributes=(("axes", "[-1]"),) if name == "ln" else (("axis", "-1"),),
            flops=5 * count,
        )
        return describe("kernel", inputs, (operator,), (len(inputs),))
    if name in _ONE_OPERAND:
        operator = Operator(
            name=_ONE_OPERAND[name], kind=_ELEMENTWISE, inputs=(0,), outputs=(tensor,), flops=count
        )
        return describe("kernel", (tensor,), (operator,), (1,))
    other = tensor if name in _TWO_OPERANDS else Tensor((), "float32", constant=True)
    operator = Operator(
        name={**_TWO_OPERANDS, **_BY_A_NUMBER}[name],
        kind=_BROADCAST,
        inputs=(0, 1),
        outputs=(tensor,),
        flops=count,
    )
    return describe("kernel", (tensor, other), (operator,), (2,))


def _batched_product(batch: int, rows: int, inner: int, columns: int) -> Workload:
    product = Operator(
        name="matmul",
        kind=_ANCHOR,
        inputs=(0, 1),
        outputs=(Tensor((batch, rows, columns), "float32"),),
        flops=2 * batch * rows * inner * columns,
    )
    inputs = (Tensor((batch, rows, inner), "float32"), Tensor((batch, inner, columns), "float32"))
    return describe("kernel", inputs, (product,), (2,))


def _linear(rows: int, inner: int, columns: int) -> Workload:
    out = Tensor((rows, columns), "float32")
    inputs = (
        Tensor((rows, inner), "float32"),
        Tensor((columns, inner), "float32", constant=True),
        Tensor((columns,), "float32", constant=True),
    )
    operators = (
        Operator(
            name="permute_dims", kind=_INJECTIVE, inputs=(1,), outputs=(Tensor((inner, columns), "float32"),)
        ),
        Operator(
            name="matmul", kind=_ANCHOR, inputs=(0, 3), outputs=(out,), flops=2 * rows * inner * columns
        ),
        Operator(name="add", kind=_BROADCAST, inputs=(4, 2), outputs=(out,), flops=rows * columns),
    )
    return describe("kernel", inputs, operators, (5,))


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"there is no column {error}"
    return str(error)[:300]

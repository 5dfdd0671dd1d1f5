"""Check what real ranks compute in inference: every output of every micro-batch against a reference model's.

Outputs of one micro-batch are compared at a time, so that this process never holds all of a large model's. An
output of a stage on several ranks is compared on each of them. Without a reference they are to be finite.
Checked by injected faults in tests/tessel/engine/test_outputs_check.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np

from tessel.engine.results_check import ExpectedResults, ResultsCheck, TensorCheck, severity
from tuner.numerical_error import Deviation, compare_tensor, find_non_finite, tolerance_of, worst

Places = Mapping[str, Sequence[tuple[int, np.ndarray]]]
"""By output: each stage and rank's array of it, with the stage's number."""


def outputs_path(folder: Path, schedule: str, rank: int) -> Path:
    """Return the file of a rank's outputs in a schedule; see `write_outputs`."""
    return folder / f"outputs-{schedule}-{rank}.npz"


def write_outputs(path: Path, outputs: Iterable[tuple[int, int, str, np.ndarray]]) -> None:
    """Write outputs, each with the stage that made it, its micro-batch and its name."""
    arrays = {f"{stage}/{micro_batch}/{name}": array for stage, micro_batch, name, array in outputs}
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # names are data, and none is `allow_pickle`


def check_outputs(
    files: Mapping[str, Sequence[Path]], expected: ExpectedResults | None, *, micro_batches: int
) -> ResultsCheck:
    """Compare what ranks wrote with the reference.

    Args:
        files: by schedule, one of each rank.
        expected: what outputs are compared with; where it has none, or there is none, they are to be finite.
        micro_batches: how many there were.
    """
    checks: list[TensorCheck] = []
    with ExitStack() as stack:
        readers = {
            schedule: [_Reader(path, stack) for path in of_ranks] for schedule, of_ranks in files.items()
        }
        if expected is None or expected.outputs is None:
            return _finite_alone(readers, micro_batches)
        references = expected.outputs(micro_batches)
        for micro_batch, reference in zip(range(micro_batches), references, strict=True):
            for schedule, of_ranks in readers.items():
                found = _gather(of_ranks, micro_batch)
                checks.extend(_check_micro_batch(schedule, micro_batch, found, reference))
    if expected.types is not None and not all(check.is_right for check in checks):
        types = expected.types()
        checks = [
            msgspec.structs.replace(check, tolerance=max(check.tolerance, tolerance_of(types)))
            for check in checks
        ]
    failures = sorted((check for check in checks if not check.is_right), key=severity, reverse=True)
    return ResultsCheck(
        reference_name=expected.name if checks else "",
        num_outputs=len(checks),
        worst_output=max(checks, key=severity, default=None),
        failures=tuple(failures),
    )


def with_outputs(check: ResultsCheck, of_outputs: ResultsCheck) -> ResultsCheck:
    """Add what is known of outputs to what is known of losses and gradients."""
    return msgspec.structs.replace(
        check,
        num_outputs=of_outputs.num_outputs,
        worst_output=of_outputs.worst_output,
        failures=(*check.failures, *of_outputs.failures),
    )


def _finite_alone(readers: Mapping[str, Sequence[_Reader]], micro_batches: int) -> ResultsCheck:
    """Return what is known of outputs without a reference: which are not finite."""
    num_outputs, failures = 0, []
    for micro_batch in range(micro_batches):
        for schedule, of_ranks in readers.items():
            for name, places in _gather(of_ranks, micro_batch).items():
                num_outputs += 1
                odd = [(stage, found) for stage, each in places if (found := find_non_finite(name, each))]
                if odd:
                    failures.append(
                        TensorCheck(
                            schedule=schedule,
                            kind="output",
                            tensor=name,
                            stages=tuple(sorted({stage for stage, _ in odd})),
                            micro_batch=micro_batch,
                            fault=odd[0][1].fault,
                            tolerance=tolerance_of(()),
                        )
                    )
    return ResultsCheck(
        num_outputs=num_outputs, worst_output=next(iter(failures), None), failures=tuple(failures)
    )


class _Reader:
    """A rank's file of outputs, of which one array at a time is read."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._arrays = stack.enter_context(np.load(path, allow_pickle=False))
        self._keys: dict[int, list[tuple[int, str, str]]] = {}
        for key in self._arrays.files:
            stage, micro_batch, name = key.split("/", 2)
            self._keys.setdefault(int(micro_batch), []).append((int(stage), name, key))

    def outputs(self, micro_batch: int) -> Iterator[tuple[int, str, np.ndarray]]:
        """Yield each output of a micro-batch with its stage and its name."""
        for stage, name, key in self._keys.get(micro_batch, ()):
            yield stage, name, self._arrays[key]


def _gather(readers: Sequence[_Reader], micro_batch: int) -> Places:
    found: dict[str, list[tuple[int, np.ndarray]]] = {}
    for reader in readers:
        for stage, name, array in reader.outputs(micro_batch):
            found.setdefault(name, []).append((stage, array))
    return found


def _check_micro_batch(
    schedule: str, micro_batch: int, found: Places, expected: Mapping[str, np.ndarray]
) -> Iterator[TensorCheck]:
    for name in (*expected, *(name for name in found if name not in expected)):
        places = found.get(name, ())
        deviation = _deviation(name, [array for _, array in places], expected.get(name))
        yield TensorCheck(
            schedule=schedule,
            kind="output",
            tensor=name,
            stages=tuple(sorted({stage for stage, _ in places})),
            micro_batch=micro_batch,
            relative_error=deviation.relative_error,
            fault=deviation.fault,
            tolerance=tolerance_of(str(array.dtype) for array in expected.values()),
        )


def _deviation(name: str, found: Sequence[np.ndarray], expected: np.ndarray | None) -> Deviation:
    """Compare every rank's array of one output with the reference's."""
    if expected is None:
        return Deviation(tensor=name, fault="was made, but the reference has none")
    deviations = (compare_tensor(name, array, expected, infinity_agrees=True) for array in found)
    return worst(deviations) or Deviation(tensor=name, fault="is missing")

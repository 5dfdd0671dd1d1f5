"""Faults put into what stages compute, to see that a check finds each and names the tensor.

`CORRUPTIONS` changes an array in ways that programs go wrong; a check of any kind may be tried with them.
`FaultyProgram` wraps a stage of the engine and makes one fault in it; `run_in_process` runs stages, faulty or
not, under the real executor in one process, without a transport.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tessel.engine.actions import Action, actions_of
from tessel.engine.job import RankResult
from tessel.engine.program import OutputsProgram, StageProgram, Tensors
from tessel.engine.ranks.executor import Executor
from tessel.engine.ranks.progress import Progress
from tessel.engine.results_check import RankGradients
from tessel.schedule import Schedule


def _with(array: np.ndarray, value: float) -> np.ndarray:
    """Put one value into the middle of an array."""
    changed = array.copy()
    changed.reshape(-1)[changed.size // 2] = value
    return changed


CORRUPTIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "NaN": lambda array: np.full_like(array, np.nan),
    "one NaN": lambda array: _with(array, np.nan),
    "infinity": lambda array: np.full_like(array, np.inf),
    "one negative infinity": lambda array: _with(array, -np.inf),
    "off by a hundredth": lambda array: array * np.asarray(1.01, array.dtype),
    "doubled": lambda array: array * 2,
    "other sign": lambda array: -array,
    "zero": np.zeros_like,
    "shifted by a row": lambda array: np.roll(array, 1, axis=0),
}
"""What goes wrong with the values of one tensor, by name."""

NON_FINITE = ("NaN", "one NaN", "infinity", "one negative infinity")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong in one stage.

    Attributes:
        place: `gradient`, `loss` and `output` change what the stage reports, `sent` what it hands to the
            stage after, `returned` the gradients that it hands back.
        kind: one of `CORRUPTIONS`; `missing` leaves it out; `another's` gives that of another micro-batch or
            weight; `stale` gives what the micro-batch before had; `unexpected` adds one nobody asked for.
        stage: number of the stage.
        weight: whose gradient, where the place is `gradient`.
        micro_batch: of what is sent or returned, of the loss, or of the outputs.
    """

    place: str
    kind: str
    stage: int
    weight: str = ""
    micro_batch: int = 1

    def __str__(self) -> str:
        tensor = self.weight or f"micro-batch {self.micro_batch}"
        return f"{self.kind}: {self.place} of stage {self.stage}, {tensor}"


class FaultyProgram:
    """A stage in which one thing goes wrong; satisfies the engine's `StageProgram`."""

    def __init__(self, program: StageProgram, fault: Fault) -> None:
        self._program = program
        self._fault = fault
        self._last: Tensors = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self, action: Action, given: Mapping[str, torch.Tensor]) -> Tensors:
        made = self._program.run(action, given)
        place = "sent" if action.kind == "F" else "returned"
        if place != self._fault.place or not made:
            return made
        last, self._last = self._last, {name: value.clone() for name, value in made.items()}
        if action.micro_batch != self._fault.micro_batch:
            return made
        if self._fault.kind == "stale":
            return last or {name: torch.roll(value, 1, 0) for name, value in made.items()}
        return {
            name: _corrupted(value, self._fault.kind) if value.is_floating_point() else value
            for name, value in made.items()
        }

    def gradients(self) -> Tensors:
        return self._changed(dict(self._program.gradients()), self._fault.weight, "gradient")

    def losses(self) -> dict[int, float]:
        losses = {number: torch.tensor(loss) for number, loss in self._program.losses().items()}
        changed = self._changed(losses, self._fault.micro_batch, "loss")
        return {number: float(loss) for number, loss in changed.items()}

    def keep_outputs(self) -> None:
        if isinstance(self._program, OutputsProgram):
            self._program.keep_outputs()

    def outputs(self) -> dict[int, Tensors]:
        found = dict(self._program.outputs()) if isinstance(self._program, OutputsProgram) else {}
        if self._fault.place == "output":
            of_fault = found[self._fault.micro_batch]
            found[self._fault.micro_batch] = {
                name: _corrupted(value, self._fault.kind) for name, value in of_fault.items()
            }
        return found

    def _changed(self, tensors: dict[Any, torch.Tensor], name: Any, place: str) -> dict[Any, torch.Tensor]:
        if place != self._fault.place:
            return tensors
        if self._fault.kind == "missing":
            del tensors[name]
        elif self._fault.kind == "unexpected":
            tensors[len(tensors) + 7 if place == "loss" else "nobody's"] = tensors[name]
        elif self._fault.kind == "another's":
            shape = tensors[name].shape
            other = next(each for each in tensors if each != name and tensors[each].shape == shape)
            tensors[name], tensors[other] = tensors[other], tensors[name]
        else:
            tensors[name] = _corrupted(tensors[name], self._fault.kind)
        return tensors


def run_in_process(
    programs: Mapping[int, StageProgram], schedule: Schedule, folder: Path
) -> tuple[tuple[RankResult], RankGradients]:
    """Run a schedule whose stages are all on one rank; return what a check of results is given."""
    executor = Executor(0, [(0,)] * len(programs), programs, Progress(folder, 0), torch.device("cpu"))
    executor.run_step(executor.prepare(actions_of(schedule)), schedule.micro_batches, _Nowhere())  # type: ignore[arg-type]
    losses = {number: loss for program in programs.values() for number, loss in program.losses().items()}
    gradients = {
        (name, stage): [(0, gradient.numpy())]
        for stage, program in programs.items()
        for name, gradient in program.gradients().items()
    }
    return (RankResult(rank=0, events={}, losses={"searched": losses}),), gradients


class _Nowhere:
    """A transport that is never used: one rank hands over to itself."""

    def start_step(self, arrivals: object) -> None:
        """Await nothing."""

    def finish(self) -> None:
        """Have nothing to wait for."""


def _corrupted(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    array = tensor.detach().cpu().numpy()
    changed = CORRUPTIONS[kind](array if array.shape else array.reshape(1)).reshape(array.shape)
    # A copy in torch's memory, which is aligned as TVM asks.
    return torch.from_numpy(np.ascontiguousarray(changed)).clone().reshape(tensor.shape).to(tensor.device)

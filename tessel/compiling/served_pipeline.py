"""A pipeline of inference over processes, called as a program is; micro-batches stream through it.

    with tessel.load("plan.json") as pipeline:
        y = pipeline(x)                                # one, through every stage
        for y in pipeline.stream(batches): ...         # as many at once as there is room for, in order

Checked in tests/tessel/jobs/test_loading.py.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self

import numpy as np

from tessel.compiling.program import Program
from tessel.engine.serving.ranks import Result, ServingRanks
from tuner.runtime.compiled_program import CompiledProgram
from tuner.runtime.manifest import Manifest
from tuner.runtime.native import array_of_tensor, tensor_of_bytes


class ServedPipeline(Program):
    """A pipeline whose stages run in processes of their own; several threads may call it.

    Args:
        ranks: the running processes; they end with this.
    """

    def __init__(self, ranks: ServingRanks) -> None:
        self._ranks = ranks
        self._machines = _RankMachines(ranks)
        super().__init__(CompiledProgram(ranks.manifest, self._machines, ()), write_library=bytes)

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand in one call's arguments; wait while the pipeline is full.

        Returns:
            What the module returns, when it is there.

        Raises:
            EngineError: a rank has failed, or the pipeline was closed.
            TypeError: as a call does.
            ValueError: likewise.
        """
        leaves = self.leaves(args, kwargs)
        found: Future[Any] = Future()

        def finish(done: Future[Result]) -> None:
            try:
                found.set_result(self.rebuilt(self._machines.tensors(done.result()), leaves))
            except Exception as error:  # a rank's, told to whoever waits
                found.set_exception(error)

        self._machines.submit(self.prepared(leaves)).add_done_callback(finish)
        return found

    def stream(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield what the module returns for each batch, in order; several are on their way meanwhile.

        Args:
            batches: of each call a tensor, a tuple of arguments by position, or a mapping by name.

        Raises:
            EngineError: a rank has failed, or does not answer; names it.
        """
        waiting: deque[Future[Any]] = deque()
        for batch in batches:
            while len(waiting) >= self._ranks.depth or (waiting and waiting[0].done()):
                yield self._ranks.wait(waiting.popleft())
            if isinstance(batch, Mapping):
                waiting.append(self.submit(**batch))
            else:
                waiting.append(self.submit(*(batch if isinstance(batch, tuple) else (batch,))))
        while waiting:
            yield self._ranks.wait(waiting.popleft())

    def close(self) -> None:
        """Wait for what is on its way, and end the processes."""
        self._ranks.close()

    def __enter__(self) -> Self:
        """Return this; it is closed with the body."""
        return self

    def __exit__(self, *raised: object) -> None:
        """End the processes."""
        self.close()

    def save(self, path: str | os.PathLike[str]) -> int:
        """Refuse: what is loaded is the plan."""
        raise ValueError("a pipeline is loaded from its plan, which is saved already; copy that file")


class _RankMachines:
    """Turns tensors into the bytes that ranks take, and back."""

    takes_arrays = False

    def __init__(self, ranks: ServingRanks) -> None:
        self._ranks = ranks
        self._manifest: Manifest = ranks.manifest

    def run(self, inputs: Sequence[Any]) -> Any:
        """Return what the pipeline gives for inputs."""
        return self.tensors(self._ranks.wait(self.submit(inputs)))

    def submit(self, inputs: Sequence[Any]) -> Future[Result]:
        """Hand in inputs."""
        named = zip(self._manifest.inputs, inputs, strict=True)
        return self._ranks.submit({spec.name: _bytes_of(value) for spec, value in named})

    def tensors(self, found: Result) -> Any:
        """Return results as a program's machine gives them."""
        made = [
            tensor_of_bytes(data, spec.shape, spec.dtype)
            for data, spec in zip(found, self._manifest.outputs, strict=True)
        ]
        return made[0] if len(made) == 1 else made


def _bytes_of(tensor: Any) -> np.ndarray:
    """Return the bytes of a tensor of torch's or TVM's, which is contiguous."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        found: np.ndarray = tensor.reshape(-1).view(torch.uint8).numpy()
        return found
    return array_of_tensor(tensor).reshape(-1).view(np.uint8)

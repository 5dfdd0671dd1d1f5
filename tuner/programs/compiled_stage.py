"""One compiled stage, ready to run; torch tensors cross its interface by DLPack without a copy.

The joint backward and the two halves of a split one are programs of their own, so a split schedule does no
work twice. Checked in tests/tuner/programs/test_compiled_stages.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
import tvm
from torch.utils.dlpack import from_dlpack
from tvm import relax

from tuner.graph.relax_types import IRModule, num_inputs_of
from tuner.lowering.machine import load_machine
from tuner.lowering.weight_binding import bound_arguments
from tuner.plan import Routes, StageMemory, TensorInfo
from tuner.programs.autograd_stage import StageAction
from tuner.programs.step_results import ONLY_COPY, PipelineCopy, StepResults, Tensors, total_gradient
from tuner.stages import Stage, StageFunction
from tuner.stages.interface import gradient_name
from tuner.targets.target import Target

_RELEASE = "release"
"""Name of a function that returns nothing, in the place of what the last call returned."""


def with_release(module: IRModule) -> IRModule:
    """Return the module with a function that lets TVM's machine forget the last results.

    The machine keeps a reference to what it returned until its next call: a stage would hold one more set of
    gradients than it needs.
    """
    builder = relax.BlockBuilder()
    with builder.function(_RELEASE, []):
        builder.emit_func_output(relax.Tuple([]))
    added = tvm.IRModule(dict(module.functions_items()), attrs=module.attrs)
    added.update_func(relax.GlobalVar(_RELEASE), builder.get()[_RELEASE])
    return added


class Machine:
    """A compiled function that takes and returns torch tensors by name.

    What depends on weights alone is computed when it first runs, and again once one of them was changed.

    Attributes:
        storages: bytes of each storage that TVM planned for its results and intermediate tensors.
        bound_bytes: of the tensors that it keeps of what depends on weights alone.
    """

    def __init__(
        self,
        executable: Any,
        function: StageFunction,
        target: Target,
        *,
        storages: Sequence[int] = (),
        bound_bytes: int = 0,
    ) -> None:
        self.storages = tuple(storages)
        self.bound_bytes = bound_bytes
        self._machine = load_machine(executable, _device(target))
        is_released = self._machine.module.implements_function(_RELEASE)
        self._release = self._machine[_RELEASE] if is_released else None
        names = [info.name for info in function.inputs]
        num_inputs = num_inputs_of(function.module["main"])
        self._inputs, self._weights = names[:num_inputs], names[num_inputs:] if num_inputs is not None else []
        self._outputs = [info.name for info in function.outputs]
        self._bound: list[Any] = []
        self._bound_of: list[tuple[int, int]] = []

    def __call__(self, known: Mapping[str, torch.Tensor]) -> Tensors:
        """Run on the inputs among the known tensors; return every output by name."""
        inputs = [tvm.runtime.from_dlpack(known[name]) for name in self._inputs]
        results = self._machine["main"](*inputs, *self._bind_weights(inputs, known))
        if self._release is not None:
            self._release()
        return {name: from_dlpack(result) for name, result in zip(self._outputs, results, strict=True)}

    def _bind_weights(self, inputs: Sequence[Any], known: Mapping[str, torch.Tensor]) -> Sequence[Any]:
        """Return what `main` takes after its inputs, which is made anew where a weight is not as it was."""
        weights = [known[name] for name in self._weights]
        # Torch counts how often a tensor was changed in place.
        states = [(weight.data_ptr(), weight._version) for weight in weights]
        if states != self._bound_of:
            self._bound = []  # before the new ones are made, not beside them
            arguments = [*inputs, *map(tvm.runtime.from_dlpack, weights)]
            self._bound = bound_arguments(self._machine, arguments)[len(inputs) :]
            self._bound_of = states
        return self._bound


class StageMachine(Protocol):
    """A function of a stage that takes and returns torch tensors by name.

    Attributes:
        storages: bytes of each storage that it holds beside its arguments, results included; empty where
            nobody planned them.
        bound_bytes: of the tensors that it keeps of what depends on weights alone.
    """

    storages: tuple[int, ...]
    bound_bytes: int

    def __call__(self, known: Mapping[str, torch.Tensor]) -> Tensors:
        """Run on the inputs among the known tensors; return every output by name."""
        ...


class CompiledStage:
    """One stage, ready to run; satisfies the engine's `StageProgram`.

    Args:
        stage: what it is.
        machines: its compiled functions by `forward`, `backward`, `backward_input`, `backward_weight`.
        weights: its weights by name.
        inputs: gives the user's inputs of a micro-batch.
        routes: which stage each tensor comes from and goes to, and which gradients come and go.
        recomputes: whether it keeps what it received alone, and runs its forward again in its backward.
        copy: of the pipeline that it belongs to.
    """

    def __init__(
        self,
        stage: Stage,
        *,
        machines: Mapping[str, StageMachine],
        weights: Tensors,
        inputs: Callable[[int], Tensors],
        routes: Routes,
        recomputes: bool = False,
        copy: PipelineCopy = ONLY_COPY,
    ) -> None:
        self._stage = stage
        self._recomputes = recomputes
        self._machines = machines
        self._weights = weights
        self._inputs = inputs
        self.received = stage.received
        self.sent = stage.sent
        self.routes = routes
        self.sent_gradients = _chosen(stage.received, routes.sent_gradients)
        self.received_gradients = _chosen(stage.sent, routes.received_gradients)
        self._kept: dict[int, Tensors] = {}
        self._to_recompute: dict[int, Tensors] = {}
        self._copy = copy
        self._results = StepResults(copy)

    def start_step(self, num_micro_batches: int) -> None:
        """Forget what the step before left."""
        self._kept.clear()
        self._to_recompute.clear()
        self._results.start(num_micro_batches)

    def run(self, action: StageAction, given: Mapping[str, torch.Tensor]) -> Tensors:
        """Run one action; return what other stages wait for.

        Raises:
            TunerError: the stage has no such function.
        """
        match action.kind:
            case "F":
                return self._forward(action.micro_batch, given)
            case "B":
                return self._backward("backward", action.micro_batch, given, is_last=True)
            case "I":
                return self._backward("backward_input", action.micro_batch, given, is_last=False)
            case _:
                return self._backward("backward_weight", action.micro_batch, given, is_last=True)

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the model's inputs that the stage reads."""
        return tuple(info.name for info in self._stage.inputs if info not in self.received)

    @property
    def weights(self) -> Tensors:
        """This process's weights by name; changed in place, they are what the next action computes with."""
        return self._weights

    @property
    def divided_weights(self) -> frozenset[str]:
        """Names of the weights of which each rank holds a part of its own."""
        return frozenset()

    def own_gradients(self) -> Tensors:
        """Return the mean gradient of each of `weights`, of this rank's part where it is divided."""
        return self._results.mean_gradients()

    def gradients(self) -> Tensors:
        """Return each weight's gradient, the mean over the step's micro-batches."""
        return self._results.mean_gradients()

    @property
    def memory(self) -> StageMemory | None:
        """What this process holds of the stage, by its functions' own plans; None where they have none."""
        if not any(machine.storages for machine in self._machines.values()):
            return None
        return StageMemory(
            weights={name: weight.nbytes for name, weight in self._weights.items()} | self._bound_bytes(),
            inputs=self._bytes_of([info for info in self._stage.inputs if info not in self.received]),
            received=self._bytes_of(self.received),
            sent=self._bytes_of(self.sent),
            received_gradients=self._bytes_of(self.received_gradients, gradient_name),
            sent_gradients=self._bytes_of(self.sent_gradients, gradient_name),
            saved=self._bytes_of(self._stage.saved),
            saved_for_weight=self._bytes_of(self._stage.saved_for_weight),
            storages={name: machine.storages for name, machine in self._machines.items()},
            outputs={
                name: frozenset(info.name for info in function.outputs)
                for name, function in self._stage.functions().items()
                if name in self._machines
            },
            recomputes=self._recomputes,
        )

    def _bound_bytes(self) -> dict[str, int]:
        """Return the bytes that its functions keep of what depends on weights alone."""
        return {
            f"{self._stage.name}.{name}.bound": machine.bound_bytes
            for name, machine in self._machines.items()
            if machine.bound_bytes
        }

    def _bytes_of(self, infos: Iterable[TensorInfo], named: Callable[[str], str] = str) -> dict[str, int]:
        """Return the bytes that this process holds of each tensor; all of it, unless it is divided."""
        return {named(info.name): info.num_bytes for info in infos}

    def losses(self) -> dict[int, float]:
        """Return the loss of each micro-batch; empty but for the last stage."""
        return dict(self._results.losses)

    def keep_outputs(self) -> None:
        """Keep outputs from the next step on."""
        self._results.keeps_outputs = True

    def outputs(self) -> dict[int, Tensors]:
        """Return the model's outputs that this stage made in the step, by micro-batch and name."""
        return self._results.outputs

    def _forward(self, micro_batch: int, given: Mapping[str, torch.Tensor]) -> Tensors:
        known = self._run_forward(micro_batch, given)
        if not self._stage.sent:
            for info in self._stage.outputs:
                if not info.shape:
                    self._results.add_loss(micro_batch, float(known[info.name]))
        self._results.add_outputs(micro_batch, {name: known[name] for name in self._stage.model_outputs})
        if "backward" in self._machines and self._recomputes:
            self._to_recompute[micro_batch] = dict(given)
        elif "backward" in self._machines:
            self._kept[micro_batch] = self._saved_of(known)
        return {info.name: known[info.name] for info in self._stage.sent}

    def _run_forward(self, micro_batch: int, given: Mapping[str, torch.Tensor]) -> Tensors:
        """Return by name all that the forward takes and makes, weights left out."""
        known = {**self._inputs(self._copy.of_step(micro_batch)), **given}
        return known | self._machines["forward"]({**known, **self._weights})

    def _saved_of(self, known: Tensors) -> Tensors:
        saved = {info.name for info in self._stage.saved}
        return {name: value for name, value in known.items() if name in saved}

    def _take_saved(self, micro_batch: int) -> Tensors:
        """Return what a backward reads of its forward, which runs again if it was not kept."""
        given = self._to_recompute.pop(micro_batch, None)
        if given is None:
            return self._kept.pop(micro_batch)
        return self._saved_of(self._run_forward(micro_batch, given))

    def _backward(
        self, function: str, micro_batch: int, given: Mapping[str, torch.Tensor], *, is_last: bool
    ) -> Tensors:
        known = self._take_saved(micro_batch)
        known |= {gradient_name(name): value for name, value in given.items()}
        if function not in self._machines and function == "backward_input":
            self._kept[micro_batch] = known  # Nothing waits for this stage: its weight half does all.
            return {}
        if function not in self._machines:
            function = "backward"
        made = self._machines[function]({**known, **self._weights})
        if not is_last:
            held = {info.name for info in self._stage.saved_for_weight}
            self._kept[micro_batch] = {name: value for name, value in (known | made).items() if name in held}
        self._results.add((name, made.get(gradient_name(name))) for name in self._stage.parameters)
        if function == "backward_weight":
            return {}
        return {info.name: self._returned(info.name, made, given) for info in self.sent_gradients}

    def _returned(self, name: str, made: Tensors, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return a received tensor's gradient: of its use here, of its use further on, or both."""
        further = given.get(name) if name in self._stage.relayed else None
        total = total_gradient(made.get(gradient_name(name)), further)
        assert total is not None, "only tensors with a gradient are sent back"
        return total


def _device(target: Target) -> Any:
    """Return TVM's handle of the device that this process computes on."""
    return tvm.cuda(torch.cuda.current_device()) if target.kind == "cuda" else tvm.cpu()


def _chosen(
    infos: Sequence[TensorInfo], by_stage: Mapping[int, Sequence[TensorInfo]]
) -> tuple[TensorInfo, ...]:
    wanted = {info.name for tensors in by_stage.values() for info in tensors}
    return tuple(info for info in infos if info.name in wanted)

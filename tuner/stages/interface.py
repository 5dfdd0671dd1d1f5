"""A pipeline stage: its functions, its boundary tensors, and the memory it holds.

    inputs ──▶ forward ──▶ outputs
                  │ saved
    input gradients ◀── backward ◀── output gradients
                           │
                           ▼ weight gradients

`backward` makes all gradients at once. Its two halves make them apart, so that a schedule may delay the
second: `backward_input` makes what the stage before is waiting for and keeps what the weights need,
`backward_weight` makes the rest (zero-bubble pipelining, Qi et al., ICLR 2024, section 2).

Every function names its tensors. A stage runs by looking its inputs up by name and keeping its outputs by
name, so the order of arguments is stated once, in the interface, and is the same on every device. The
gradient of tensor `t` is named `t.grad`. A stage that reads a relayed tensor makes its own part of the
gradient only; whoever runs the stages adds it to the part that came back from later ones, as `run_stages` in
`tuner.stages.check` does. Checked in tests/tuner/stages/test_build.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.frontend.model import IRModule, Model
from tuner.plan import Figure, StagePlan, TensorInfo, TiedParameter


@dataclass(frozen=True, slots=True)
class StageFunction:
    """A module whose `main` takes `inputs` and returns the tuple of `outputs`, both in order."""

    module: IRModule
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage.

    Attributes:
        name: `stage0`, `stage1`, …
        layers: names of the layers it holds, in order.
        forward: takes boundary tensors, the user's inputs that it reads, then weights; returns its outputs,
            then what it saves beyond them.
        backward: the joint backward: takes what was saved, output gradients and weights; returns input
            gradients, then weight gradients. None for inference and where no gradient is wanted.
        backward_input: its first half: returns input gradients, then what the second half needs beyond what
            the forward saved. None where the stage's inputs need no gradient, as in the first stage.
        backward_weight: its second half: returns weight gradients. None without weights.
        inputs: tensors that it reads: from earlier stages, then from the user.
        outputs: tensors that it makes for later stages or the user; the loss, for the last in training.
        model_outputs: names of those that the model returns.
        received: what comes from the stage before, in order, relayed tensors included; of branches, from all
            stages before it.
        sources: for each of them, the number of the stage that it comes from.
        sent: what goes to the stage after, or to all that follow, in order, relayed tensors included.
        relayed: names of the tensors that it receives and sends on.
        parameters: names of its weights, in order of first use.
        saved: what must be kept from its forward to its joint backward, weights excluded.
        saved_for_weight: what must be kept from `backward_input` to `backward_weight`.
        weight_bytes: bytes of its weights.
    """

    name: str
    layers: tuple[str, ...]
    forward: StageFunction
    backward: StageFunction | None
    backward_input: StageFunction | None
    backward_weight: StageFunction | None
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    model_outputs: tuple[str, ...]
    received: tuple[TensorInfo, ...]
    sources: tuple[int, ...]
    sent: tuple[TensorInfo, ...]
    relayed: tuple[str, ...]
    parameters: tuple[str, ...]
    saved: tuple[TensorInfo, ...]
    saved_for_weight: tuple[TensorInfo, ...]
    weight_bytes: int

    def receives_from(self, number: int) -> tuple[TensorInfo, ...]:
        """Return what comes from the stage of that number, in order."""
        return tuple(
            info for info, source in zip(self.received, self.sources, strict=True) if source == number
        )

    @property
    def saved_bytes(self) -> int:
        """Bytes kept from the forward to the joint backward, each micro-batch."""
        return total_bytes(self.saved)

    @property
    def saved_for_weight_bytes(self) -> int:
        """Bytes kept from the input half to the weight half of a split backward, each micro-batch."""
        return total_bytes(self.saved_for_weight)

    @property
    def boundary_bytes(self) -> int:
        """Bytes sent to the next stage, each micro-batch; zero for the last."""
        return total_bytes(self.sent)

    def functions(self, *, split: bool = True) -> dict[str, StageFunction]:
        """Return its functions by name, halves of its backward only where they are asked for and differ."""
        found = {"forward": self.forward, "backward": self.backward}
        if split and self.backward_input is not None:
            # Where inputs need no gradient, the weight half is the joint backward: there is nothing to split.
            found |= {"backward_input": self.backward_input, "backward_weight": self.backward_weight}
        return {name: function for name, function in found.items() if function is not None}

    def plan(self, figures: Mapping[str, Figure]) -> StagePlan:
        """Return the stage as plain data.

        Args:
            figures: latencies by function: `forward`, and `backward`, `backward_input` and
                `backward_weight` where the stage has them.
        """
        return StagePlan(
            name=self.name,
            layers=self.layers,
            inputs=self.inputs,
            outputs=self.outputs,
            relayed=self.relayed,
            parameters=self.parameters,
            forward=figures["forward"],
            backward=figures.get("backward"),
            backward_input=figures.get("backward_input"),
            backward_weight=figures.get("backward_weight"),
            weight_bytes=self.weight_bytes,
            saved_bytes=self.saved_bytes,
            saved_for_weight_bytes=self.saved_for_weight_bytes,
            boundary_bytes=self.boundary_bytes,
        )


def total_bytes(tensors: Sequence[TensorInfo]) -> int:
    """Sum the bytes of tensors."""
    return sum(tensor.num_bytes for tensor in tensors)


_GRADIENT = ".grad"


def gradient_name(name: str) -> str:
    """Name the gradient of a tensor."""
    return f"{name}{_GRADIENT}"


def is_gradient(name: str) -> bool:
    """Whether a tensor is called as a gradient is."""
    return name.endswith(_GRADIENT)


def tied_groups(model: Model, stages: Sequence[Stage]) -> tuple[tuple[TiedParameter, ...], ...]:
    """List the weights that live in several places, in order of first place; their gradients are summed.

    A group is one tensor: one parameter read by several stages, or several names that the model says are one.
    """
    leader_by_name = {name: group[0] for group in model.tied for name in group}
    places: dict[str, list[TiedParameter]] = {}
    for stage_index, stage in enumerate(stages):
        for name in stage.parameters:
            places.setdefault(leader_by_name.get(name, name), []).append(TiedParameter(name, stage_index))
    return tuple(tuple(group) for group in places.values() if len(group) > 1)


def tied_ranks(
    tied: Sequence[Sequence[TiedParameter]],
    *,
    tensor_parallel: int = 1,
    data_parallel: int = 1,
    rank_of_stage: Sequence[int] | None = None,
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """List the groups of a job's global ranks that hold the copies of each tied weight.

    Ranks are numbered as by Megatron-Core (its order `tp-cp-ep-dp-pp`) and by DeepSpeed
    (`PipeModelDataParallelTopology`): the part of a layer changes fastest, then the replica, then the rank of
    the pipeline. The gradients of a group are to be summed; replicas are averaged besides.

    Args:
        tied: ties of a pipeline, such as `TorchPipeline.tied`, `tied_groups` and a plan's.
        tensor_parallel: ranks that each stage is divided over, each of which holds its own part of a weight.
        data_parallel: replicas of the pipeline.
        rank_of_stage: the pipeline's rank that each stage is on, where a rank has several; stage i is on
            rank i unless given.

    Returns:
        Of each tie, a group for each replica and part, replica by replica: the ranks, ascending. One rank
        alone needs no sum.

    Raises:
        ValueError: a degree is below 1, or a stage has no rank.
    """
    for name, degree in (("tensor_parallel", tensor_parallel), ("data_parallel", data_parallel)):
        if degree < 1:
            raise ValueError(f"{name} is {degree}, and a degree counts ranks; give 1 or more")
    return tuple(
        tuple(
            tuple((rank * data_parallel + replica) * tensor_parallel + part for rank in ranks)
            for replica in range(data_parallel)
            for part in range(tensor_parallel)
        )
        for ranks in (sorted({_rank_of(member, rank_of_stage) for member in group}) for group in tied)
    )


def _rank_of(member: TiedParameter, rank_of_stage: Sequence[int] | None) -> int:
    if rank_of_stage is None:
        return member.stage
    if member.stage >= len(rank_of_stage):
        raise ValueError(
            f"stage {member.stage} holds {member.name}, and rank_of_stage names the ranks of "
            f"{len(rank_of_stage)} stages; name one for each stage"
        )
    return rank_of_stage[member.stage]

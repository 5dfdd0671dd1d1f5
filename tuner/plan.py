"""The result of tuning a model, as plain data: the only part of the tuner that `tessel` imports.

Every latency is a `Figure` that says where it comes from. Documents are JSON with sorted keys and a
`schema_version`; unknown keys are refused by name. Backends that were renamed since are read by their old
names. Checked in tests/tuner/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from records.backend_names import current_label, current_name


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A latency and where it comes from.

    Attributes:
        latency_us: microseconds of one execution; the median where it was measured.
        source: `measured` on the target, `predicted` by the cost model, `derived` by arithmetic on measured
            figures (a sum of parts, say), or `given` by the user.
        record_ids: the measurements it rests on.
        interval_us: where predicted, the interval that holds the latency with probability 0.9; where
            measured, the first and third quartile of the samples.
    """

    latency_us: float
    source: Literal["measured", "predicted", "derived", "given"]
    record_ids: tuple[int, ...] = ()
    interval_us: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.latency_us < float("inf"):
            raise ValueError(f"latency {self.latency_us} us is not a finite number >= 0; measure it again")


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A way from device to device.

    Attributes:
        bytes_per_s: bandwidth in one direction, as seen by one device.
        latency_us: microseconds until the first byte arrives.
    """

    bytes_per_s: float
    latency_us: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.bytes_per_s < float("inf") or not 0 <= self.latency_us < float("inf"):
            raise ValueError(
                f"a link of {self.bytes_per_s} bytes/s and {self.latency_us} us is impossible; give a "
                "bandwidth above 0 and a latency of at least 0"
            )

    def transfer_us(self, num_bytes: float) -> float:
        """Return microseconds until `num_bytes` have arrived; 0 for nothing."""
        return self.latency_us + num_bytes / self.bytes_per_s * 1e6 if num_bytes else 0.0

    def all_reduce_us(self, num_bytes: float, num_devices: int) -> float:
        """Return how long a ring all-reduce takes: 2 (P - 1) steps, each of a P-th; 0 on one device.

        Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms (2009).
        """
        return 2 * (num_devices - 1) * self.transfer_us(num_bytes / num_devices)

    def scatter_us(self, num_bytes: float, num_devices: int) -> float:
        """Return how long a ring reduce-scatter or all-gather takes: half of an all-reduce."""
        return self.all_reduce_us(num_bytes, num_devices) / 2

    def all_reduces(self, sizes_bytes: Sequence[int], num_devices: int) -> Sequence[Figure]:
        """Return the time of a ring all-reduce of each size."""
        return [
            Figure(latency_us=self.all_reduce_us(size, num_devices), source="given") for size in sizes_bytes
        ]


class PairedRatio(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many times as long one program takes as another, by executions in turn in one process.

    Attributes:
        ratio: median over rounds of the ratio within a round.
        low: lower end of an interval that holds the median with probability 0.95, together with those of all
            other pairs in the race; 0 where rounds are too few.
        high: its upper end; None where rounds are too few.
        num_rounds: rounds that both programs ran.
    """

    ratio: float
    low: float
    high: float | None
    num_rounds: int


class TensorInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A named tensor of a stage's interface."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int


class TensorType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shape and data type of a tensor that a part reads or makes."""

    shape: tuple[int, ...]
    dtype: str


class PartitionPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One distinct sub-graph, the backend that runs it, and how often it occurs.

    Attributes:
        operators: names in order.
        backend: the backend chosen.
        figure: latency of one occurrence.
        occurrences: how many times the model runs this sub-graph.
        workload_fingerprint: names the workload in the records.
        functions: which functions hold it, such as `stage1.forward`.
        runner_up: the next best backend and its latency in microseconds, where another could run it.
        layers: for each occurrence the layer, or layers joined by ` + `, whose operators it holds; a repeated
            one once, and empty where the model names none.
        inputs: what it reads, in order.
        outputs: what it makes for others, in order.
    """

    operators: tuple[str, ...]
    backend: str
    figure: Figure
    occurrences: int
    workload_fingerprint: str
    functions: tuple[str, ...] = ()
    runner_up: tuple[str, float] | None = None
    layers: tuple[str, ...] = ()
    inputs: tuple[TensorType, ...] = ()
    outputs: tuple[TensorType, ...] = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "backend", current_name(self.backend))
        if self.runner_up is not None:
            backend, latency_us = self.runner_up
            msgspec.structs.force_setattr(self, "runner_up", (current_name(backend), latency_us))


class PartOccurrence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One occurrence of a sub-graph in a function's graph.

    Attributes:
        part: position of the sub-graph in the plan's partition.
        function: the function that it belongs to, such as `stage0.forward`.
        layers: the layer of each of its operators; empty text where the model names none.
        inputs: positions, in the plan's graph, of the occurrences that it reads; all before it.
    """

    part: int
    function: str
    layers: tuple[str, ...] = ()
    inputs: tuple[int, ...] = ()


class ShardsPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a stage lies over all devices, each of which runs a shard of it at the same time.

    Attributes:
        num_shards: devices that hold it.
        axes: of each weight that is divided, the axis; the others are whole on every device.
        collective_us: of each function, the time in collectives, which its figure contains.
        collective_source: whether that was measured among ranks, or is given by a link.
    """

    num_shards: int
    axes: dict[str, int]
    collective_us: dict[str, float]
    collective_source: Literal["measured", "given"] = "given"


class StagePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One pipeline stage: its interface, its costs and its memory.

    `backward` is the joint backward, measured as one function; `backward_input` and `backward_weight` are the
    two halves of a split backward, measured apart, because splitting is not free. All three are absent for
    inference; the first stage has no `backward_input` where its inputs need no gradient.

    Attributes:
        name: `stage0`, `stage1`, …
        layers: the modules it holds, in order.
        inputs: tensors it takes from earlier stages or the user.
        outputs: tensors it makes for later stages or the user.
        relayed: names of the tensors that it only passes on.
        parameters: names of its weights.
        weight_bytes: bytes of its weights.
        bound_bytes: bytes of what it makes of its weights once, folded and packed, and keeps beside them;
            what a library packs is not known and not counted. 0 where it trains.
        saved_bytes: bytes kept from its forward to its joint backward, weights excluded, each micro-batch.
        saved_for_weight_bytes: bytes kept from the input half to the weight half of a split backward.
        boundary_bytes: bytes sent to the next stage each micro-batch (the gradient coming back is as large).
        shards: where the stage is divided over all devices; costs are then the slowest shard's with all
            collectives, and weights and saved bytes those of the largest shard. None on a device of its own.
        recomputes: whether it keeps what it received instead of what its backward reads, and runs its forward
            again in its backward; its figures are without that.
    """

    name: str
    layers: tuple[str, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    relayed: tuple[str, ...]
    parameters: tuple[str, ...]
    forward: Figure
    backward: Figure | None
    backward_input: Figure | None
    backward_weight: Figure | None
    weight_bytes: int
    saved_bytes: int
    saved_for_weight_bytes: int
    boundary_bytes: int
    shards: ShardsPlan | None = None
    recomputes: bool = False
    bound_bytes: int = 0

    @property
    def received_bytes(self) -> int:
        """Bytes of what it takes from earlier stages or the user, each micro-batch."""
        return sum(tensor.num_bytes for tensor in self.inputs)

    @property
    def kept_bytes(self) -> int:
        """Bytes it holds from its forward to its backward, each micro-batch."""
        return self.received_bytes if self.recomputes else self.saved_bytes


class TiedParameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One place where a shared parameter lives."""

    name: str
    stage: int


class LayersPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What each layer of a model costs by itself, and divided over devices: no cut is chosen yet.

    Attributes:
        model: the model as the user named it.
        device_model: the processor or GPU measured on.
        training: whether layers have a backward.
        batch: samples of a micro-batch.
        layers: each layer as a stage of its own, in order.
        tied: groups of parameters that are one and the same; a stage is a layer.
        shards: by number of devices, the first and the last layer divided over them by words.
        tensor_parallel: by number of devices, every layer divided over them, by words, heads and columns;
            what has none of these is whole on each.
        undivided: why the ends cannot be divided; empty where they can, or were not to be.
        update: a step of plain gradient descent; None for inference.
        updated_bytes: weights that `update` goes over.
        update_moves: tensors as large as those that `update` reads and writes.
    """

    model: str
    device_model: str
    training: bool
    batch: int
    layers: tuple[StagePlan, ...]
    tied: tuple[tuple[TiedParameter, ...], ...]
    shards: dict[int, tuple[StagePlan, StagePlan]]
    undivided: str
    update: Figure | None
    updated_bytes: int
    update_moves: int
    tensor_parallel: dict[int, tuple[StagePlan, ...]] = {}


class Borders(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage's module is handed and hands on, where the user's inputs enter at the first stage alone.

    Attributes:
        takes: names of what comes from the stage before, or from the user at the first.
        reads: names of the module's arguments, all among `takes`.
        makes: names of the module's results.
        gives: names of what goes to the stage after, or to the user at the last; among `takes` and `makes`.
        tied: weights of the whole model that are one and the same.
    """

    takes: tuple[str, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    gives: tuple[str, ...]
    tied: tuple[tuple[TiedParameter, ...], ...] = ()


class ModelPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the tuner found for one model on one target, before any schedule.

    Attributes:
        model: the model as the user named it.
        model_fingerprint: names its structure and shapes, not its weights' values.
        training: whether stages have a backward.
        target: canonical text of the target.
        device_model: the processor or GPU measured on.
        num_threads: threads each measurement used.
        partition: the distinct sub-graphs and their backends.
        end_to_end: latency of the whole forward function by variant: `mix` and each single backend.
        sum_of_parts: what the search added up for `mix`.
        launch_penalty_us: what one more partition costs, measured.
        max_relative_error: largest error of the partitioned module against the model's own program, or else
            against the unpartitioned module; None where nothing was run.
        max_gradient_error: largest relative error of the stages' gradients, likewise against the model's own
            program or else the uncut model.
        import_error: largest error of the imported program against the model's own, relative to the largest
            output; None for models that were not imported from a program that can be run.
        reference: mode of the model's own program that losses and gradients were compared with: `train`,
            `eval`, or `export` for one that was exported before; empty where there is no such program.
        notes: a sentence on each thing in which what was tuned is not the user's own model.
        stages: the stages in order.
        tied: groups of parameters that are one and the same.
        hop_latency_us: time from the end of a block to when its result is on the next device, each stage
            boundary.
        hop_source: how the hop latency was found.
        new_measurements: measurements made by this run.
        reused_measurements: measurements found in the records.
        shapes: shapes that were bound when the model was loaded, by input.
        values: of inputs that were made constants when the model was loaded, by input.
        batch: batch size of one micro-batch that the model was loaded with.
        ratio_to_mix: for each single backend that raced, its latency over the mix's.
        graph: how the sub-graphs of the stages' forward functions hang together, inputs first; empty in plans
            of earlier versions.
        is_tie: whether the race left several variants of which none is ahead; the simplest is the mix.
        torch_calls: operators of the model's own program, by name, that stay calls of torch because they were
            imported wrongly, or have no gradient here.
        stage_devices: devices that each stage was cut for, ascending; where empty, each stage has the next
            one by itself, and one with shards has all of them.
        replicas: copies of the pipeline, whose stages stand one copy after the other; micro-batch m of copy c
            is the step's micro-batch m · replicas + c.
        tied_bytes: bytes of each group in `tied` on a device that holds it, where stages with shards hold
            their largest share; empty in plans of earlier versions.
        stages_before: stages that each stage receives from, where they form branches; empty where each takes
            from the one before it.
        cut_positions: bindings of the model at which each stage but the first begins, where no names of
            layers say so.
        tiles: decisions that earlier versions built tuned kernels with; nothing follows from them any more.
        binds_weights: whether stages compute once what depends on weights alone, as they do where nothing
            trains; false in plans of earlier versions.
    """

    model: str
    model_fingerprint: str
    training: bool
    target: str
    device_model: str
    num_threads: int
    partition: tuple[PartitionPlan, ...]
    end_to_end: dict[str, Figure]
    sum_of_parts: Figure
    launch_penalty_us: float
    max_relative_error: float | None
    max_gradient_error: float | None
    stages: tuple[StagePlan, ...]
    tied: tuple[tuple[TiedParameter, ...], ...]
    hop_latency_us: tuple[float, ...]
    hop_source: Literal["measured", "given"]
    new_measurements: int
    reused_measurements: int
    shapes: dict[str, tuple[int, ...]] = {}
    values: dict[str, bool | int | float] = {}
    batch: int = 1
    ratio_to_mix: dict[str, PairedRatio] = {}
    is_tie: bool = False
    graph: tuple[PartOccurrence, ...] = ()
    import_error: float | None = None
    reference: str = ""
    notes: tuple[str, ...] = ()
    torch_calls: tuple[str, ...] = ()
    stage_devices: tuple[tuple[int, ...], ...] = ()
    tied_bytes: tuple[int, ...] = ()
    replicas: int = 1
    stages_before: tuple[tuple[int, ...], ...] = ()
    cut_positions: tuple[int, ...] = ()
    tiles: str = ""
    binds_weights: bool = False

    def __post_init__(self) -> None:
        for field in ("end_to_end", "ratio_to_mix"):
            found = getattr(self, field)
            renamed = {current_label(name): value for name, value in found.items()}
            msgspec.structs.force_setattr(self, field, renamed)

    @property
    def stages_of_copy(self) -> int:
        """Stages of one copy of the pipeline."""
        return len(self.stages) // self.replicas

    @property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """The stages that each stage receives from."""
        return self.stages_before or tuple(
            (number - 1,) if number % self.stages_of_copy else () for number in range(len(self.stages))
        )

    @property
    def branches(self) -> tuple[tuple[int, ...], ...] | None:
        """The stages that each stage of one copy receives from; None where they are a chain."""
        return self.stages_before[: self.stages_of_copy] or None

    @property
    def device_kind(self) -> Literal["cpu", "cuda"]:
        """What the target is: a processor, or a GPU."""
        return "cuda" if '"kind":"cuda"' in self.target.replace(" ", "") else "cpu"


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stage's tensors come from and go to; gradients are named as the tensors that they belong to.

    Attributes:
        received: of its forward, by the stage before that sends it, in order.
        sent: of its forward, by the stage after that takes it; a tensor may go to several.
        received_gradients: by the stage after that sends it; those of one tensor are added.
        sent_gradients: by the stage before that takes it.
    """

    received: dict[int, tuple[TensorInfo, ...]]
    sent: dict[int, tuple[TensorInfo, ...]]
    received_gradients: dict[int, tuple[TensorInfo, ...]]
    sent_gradients: dict[int, tuple[TensorInfo, ...]]


class StageMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What one process holds of a compiled stage, tensor by tensor; bytes by name.

    Attributes:
        weights: that the process has, of a divided stage its parts.
        inputs: of the user's, each micro-batch.
        received: from the stage before.
        sent: to the stage after.
        received_gradients: from the stage after.
        sent_gradients: to the stage before.
        saved: kept from the forward to the joint backward.
        saved_for_weight: kept from the input half to the weight half.
        storages: of each function, the bytes of every storage that TVM planned for its results and its
            intermediate tensors.
        outputs: names of each function's results.
        recomputes: whether the forward keeps only what it received.
    """

    weights: dict[str, int]
    inputs: dict[str, int]
    received: dict[str, int]
    sent: dict[str, int]
    received_gradients: dict[str, int]
    sent_gradients: dict[str, int]
    saved: dict[str, int]
    saved_for_weight: dict[str, int]
    storages: dict[str, tuple[int, ...]]
    outputs: dict[str, frozenset[str]]
    recomputes: bool = False

"""A profile: what each layer of a model costs on one device, as measured by whoever wrote the table.

Layers stand in model order and form a chain: what a layer hands on goes to the next one. A model that is a
graph is read as the chain of its topological order, where `boundary_bytes` counts every tensor that is alive
across the cut behind the layer. Of a graph of two branches that meet, such as two towers, a profile says
where they stand in the chain, so that they can also run side by side. Costs are of one micro-batch on one
device (or, with a tensor-, context- or expert-parallel degree above 1, on each device of the group, their
collectives included). A profile says nothing about the cluster: links, memory and the number of devices are
the planner's.

Checked in tests/tessel/profiles/test_profile.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

from tessel.errors import ScheduleError, shown
from tessel.names import check_name

MAX_LATENCY_US = 3.6e9
"""Longest time of a layer and one micro-batch, an hour: anything above is a wrong unit."""

MAX_FACTOR = 1000.0
"""Widest interval of a prediction, as a share of it: beyond, nothing is known."""

MAX_SPREAD = 2.0
"""Widest spread of a layer's times: beyond, hardly any draw is near their mean."""

MAX_BYTES = 1 << 44
"""Most bytes of a layer on one device, 16 TiB: anything above is a wrong unit."""

MAX_LAYERS = 10_000
"""Most layers; graphs of operators have some two thousand."""

MAX_NOTE = 1000
"""Longest note; readers write a sentence each."""


class StageCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one layer costs, each micro-batch, on each device that runs it.

    Attributes:
        forward_us: microseconds of the forward.
        backward_us: microseconds of the joint backward; None where only halves were measured, or for
            inference.
        backward_input_us: microseconds of the half that yields the gradient of the input; None if unknown.
        backward_weight_us: microseconds of the half that yields the weights' gradients; None if unknown.
        recompute_us: microseconds of running the forward again before the backward; None: as the forward.
        update_us: microseconds of the optimizer's step on this layer, once a training step; None if unknown.
        gradient_pass_us: microseconds of reading or writing the sums of this layer's gradients once, where
            the framework passes over all of them beside the optimizer's step; 0 where it does not.
        weight_bytes: bytes of the weights that a device holds.
        trained_bytes: of these, bytes that have gradients and optimizer state; None: all of them, or none
            where the backward yields no gradients of weights.
        reduced_bytes: bytes of trained weights whose gradients are summed over replicas; None: all.
        expert_bytes: of the weights, bytes of routed experts, which expert parallelism divides; they are
            trained and reduced in the same share as the rest of the layer.
        saved_bytes: bytes kept from forward to backward; of inference, to the end of the step, as a part of a
            cache of keys and values is.
        saved_for_weight_bytes: of a split backward, bytes kept from its input half to its weight half; None
            if unknown: all that is saved.
        peak_bytes: bytes that the layer needs only while it runs, beyond weights and saved activations.
        boundary_bytes: bytes handed to the next layer (the gradient that comes back is as large).
        relayed_bytes: of a branch's layer, those of `boundary_bytes` that belong to the other branch alone,
            and pass through only where the branches run one after the other.
    """

    forward_us: float
    backward_us: float | None = None
    backward_input_us: float | None = None
    backward_weight_us: float | None = None
    recompute_us: float | None = None
    update_us: float | None = None
    gradient_pass_us: float = 0.0
    weight_bytes: int = 0
    trained_bytes: int | None = None
    reduced_bytes: int | None = None
    expert_bytes: int = 0
    saved_bytes: int = 0
    saved_for_weight_bytes: int | None = None
    peak_bytes: int = 0
    boundary_bytes: int = 0
    relayed_bytes: int = 0

    def __post_init__(self) -> None:
        for name in StageCosts.__struct_fields__:
            value, limit = getattr(self, name), MAX_BYTES if name.endswith("_bytes") else MAX_LATENCY_US
            if value is not None and not 0 <= value <= limit:
                raise ScheduleError(
                    f"{name} is {value}, and it is a number within 0..{limit:.0f}; check its unit"
                )
        for part, whole in (
            ("relayed_bytes", "boundary_bytes"),
            ("trained_bytes", "weight_bytes"),
            ("reduced_bytes", "weight_bytes"),
            ("expert_bytes", "weight_bytes"),
        ):
            if (getattr(self, part) or 0) > getattr(self, whole):
                raise ScheduleError(
                    f"{part} is {getattr(self, part)}, more than the {getattr(self, whole)} of {whole}, of "
                    "which it is a part; correct one of them"
                )

    def with_times_scaled(self, factor: float) -> StageCosts:
        """Return the cost with all times multiplied by the factor, none above the longest allowed."""
        times = {
            name: min(value * factor, MAX_LATENCY_US)
            for name in StageCosts.__struct_fields__
            if name.endswith("_us") and (value := getattr(self, name)) is not None
        }
        return msgspec.structs.replace(self, **times)

    @property
    def updated_bytes(self) -> int:
        """Bytes of weights that have gradients and optimizer state: as given, or as the backward says."""
        if self.trained_bytes is not None:
            return self.trained_bytes
        gradients_us = self.joint_backward_us if self.backward_weight_us is None else self.backward_weight_us
        return self.weight_bytes if gradients_us else 0

    @property
    def summed_bytes(self) -> int:
        """Bytes of trained weights whose gradients are summed over replicas."""
        return self.updated_bytes if self.reduced_bytes is None else self.reduced_bytes

    @property
    def expert_ratio(self) -> float:
        """Share of the weights that are routed experts."""
        return self.expert_bytes / self.weight_bytes if self.expert_bytes else 0.0

    @property
    def is_splittable(self) -> bool:
        """Whether the halves of the backward were both measured."""
        return self.backward_input_us is not None and self.backward_weight_us is not None

    @property
    def joint_backward_us(self) -> float | None:
        """Microseconds of the whole backward: as measured, or else the sum of its halves."""
        if self.backward_us is not None:
            return self.backward_us
        if self.backward_input_us is None and self.backward_weight_us is None:
            return None
        return (self.backward_input_us or 0.0) + (self.backward_weight_us or 0.0)


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a layer, and the tensor it shares with others.

    Attributes:
        name: unique in the profile.
        tie: a name shared by all layers that hold one and the same weight; empty for none.
    """

    name: str
    tie: str = ""

    def __post_init__(self) -> None:
        check_name("layer", self.name)
        check_name("tie", self.tie)
        if not self.name:
            raise ScheduleError("a layer has an empty name; give each layer a name of its own")


class Degrees(NamedTuple):
    """Micro-batch size and degrees of parallelism within a layer, each at least 1.

    Attributes:
        micro_batch: samples of a micro-batch.
        tensor_parallel: devices over which each layer is split.
        context_parallel: devices over which the sequence of each sample is split.
        expert_parallel: devices over which the routed experts are divided.
    """

    micro_batch: int
    tensor_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1

    @property
    def title(self) -> str:
        """What messages call it."""
        found = f"micro-batch size {self.micro_batch} with tensor-parallel degree {self.tensor_parallel}"
        for kind, degree in (("context", self.context_parallel), ("expert", self.expert_parallel)):
            found += f", {kind}-parallel degree {degree}" if degree > 1 else ""
        return found

    def __str__(self) -> str:
        """Name the degrees as sums of them are listed: `1 × 8`, and those of context and experts above 1."""
        found = f"{self.micro_batch} × {self.tensor_parallel}"
        for kind, degree in (("context", self.context_parallel), ("expert", self.expert_parallel)):
            found += f" × {kind} {degree}" if degree > 1 else ""
        return found


class CostTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The costs of every layer at one micro-batch size and one degree of each kind of parallelism.

    Attributes:
        micro_batch: samples of a micro-batch.
        tensor_parallel: devices over which each layer is split.
        context_parallel: devices over which the sequence of each sample is split.
        expert_parallel: devices over which the routed experts are divided.
        costs: one a layer, in model order.
        intervals: where the times are predicted, one a layer: the interval that holds a time with
            probability 0.9, as shares of it; empty where they were measured.
        of: class of micro-batches that it was measured with, a length or a name; `UNSET` where all are alike.
        spreads: how much each layer's times vary, as sigma of a log-normal law; `UNSET` where they do not.
    """

    micro_batch: int
    tensor_parallel: int
    context_parallel: int = 1
    expert_parallel: int = 1
    costs: tuple[StageCosts, ...]
    intervals: tuple[tuple[float, float], ...] = ()
    of: str | int | msgspec.UnsetType = msgspec.UNSET
    spreads: tuple[float, ...] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if not isinstance(self.of, msgspec.UnsetType):
            check_name("class", str(self.of))
            if self.of == "" or (isinstance(self.of, int) and self.of < 1):
                raise ScheduleError(
                    f"a class of micro-batches is {self.of!r}, and is a name or a length of at least 1"
                )
        if self.intervals and len(self.intervals) != len(self.costs):
            raise ScheduleError(
                f"{len(self.intervals)} intervals are given for {len(self.costs)} layers; give one for each"
            )
        spreads = self.spread_by_layer
        if len(spreads) != len(self.costs) or not all(0 <= each <= MAX_SPREAD for each in spreads):
            raise ScheduleError(
                f"the spreads are no number from 0 to {MAX_SPREAD:g} for each of {len(self.costs)} layers; "
                "give shares of their times"
            )
        for low, high in self.intervals:
            if not 0 < low <= 1 <= high <= MAX_FACTOR:
                raise ScheduleError(
                    f"the interval {low:g} to {high:g} does not hold 1; give shares of the predicted time, "
                    f"of at most {MAX_FACTOR:g}"
                )

    @property
    def degrees(self) -> Degrees:
        """Micro-batch size and degrees, which tell the tables of a profile apart."""
        return Degrees(self.micro_batch, self.tensor_parallel, self.context_parallel, self.expert_parallel)

    @property
    def spread_by_layer(self) -> tuple[float, ...]:
        """How much the times of each layer vary; 0 of those that do not."""
        return (0.0,) * len(self.costs) if isinstance(self.spreads, msgspec.UnsetType) else self.spreads

    @property
    def widened(self) -> CostTable:
        """The table with all times longer by their spreads."""
        own = zip(self.costs, self.spread_by_layer, strict=True)
        costs = (cost.with_times_scaled(1 + spread) for cost, spread in own)
        return msgspec.structs.replace(self, costs=tuple(costs), spreads=msgspec.UNSET)

    def at_bound(self, index: int) -> CostTable:
        """Return the table with all times at the low (0) or high (1) end of their intervals."""
        if not self.intervals:
            return self
        costs = tuple(
            cost.with_times_scaled(interval[index])
            for cost, interval in zip(self.costs, self.intervals, strict=True)
        )
        return msgspec.structs.replace(self, costs=costs, intervals=())


class ShardTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The costs of the first and the last layer, divided by words over several devices.

    Attributes:
        micro_batch: samples of a micro-batch.
        shards: devices over which both are divided.
        first: what the first layer costs on each of them, collectives included; bytes are the fullest
            device's.
        last: the same of the last layer.
    """

    micro_batch: int
    shards: int
    first: StageCosts
    last: StageCosts


class Branches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two runs of layers that read nothing of each other, and meet: the first begins with the model.

    Attributes:
        second: first layer of the second branch.
        joined: first layer that reads what both make.
    """

    second: int
    joined: int


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model's layers and their measured costs on one kind of device.

    Attributes:
        name: of the model, for messages and pictures.
        device: kind of device measured on, empty if unknown.
        notes: a sentence on each thing that its file does not say and that was assumed.
        layers: in model order.
        tables: one for each micro-batch size and degrees that were measured.
        shards: for each micro-batch size and number of devices over which first and last layer were divided.
        branches: where two branches of the model stand in the chain; None where it has no two that meet.

    Raises:
        ScheduleError: layers are missing or named twice, a table is given twice or has another number of
            layers, first and last layer are divided without a table of the whole, a backward is given in some
            tables or layers only, a branch or what joins them has no layer, or a name cannot be printed.
    """

    name: str
    layers: tuple[Layer, ...]
    tables: tuple[CostTable, ...]
    device: str = ""
    notes: tuple[str, ...] = ()
    shards: tuple[ShardTable, ...] = ()
    branches: Branches | None = None

    def __post_init__(self) -> None:
        check_name("model", self.name)
        check_name("device", self.device)
        for note in self.notes:
            if len(note) > MAX_NOTE or not note.isprintable():
                raise ScheduleError(
                    f"the note {shown(note[:40])!r} has {len(note)} characters, or some that cannot be "
                    f"printed; give printable notes of at most {MAX_NOTE}"
                )
        if not self.layers or not self.tables:
            raise ScheduleError("the profile has no layers; give one row for each layer, in model order")
        if len(self.layers) > MAX_LAYERS:
            raise ScheduleError(f"the profile has {len(self.layers)} layers; {MAX_LAYERS} are the most")
        names = Counter(layer.name for layer in self.layers)
        if twice := next((name for name, count in names.items() if count > 1), None):
            raise ScheduleError(f"two layers are named {twice!r}; give each its own name")
        keys = Counter((table.degrees, table.of) for table in self.tables)
        if again := next((key for (key, _), count in keys.items() if count > 1), None):
            raise ScheduleError(f"{again.title} is given twice; keep one")
        if len({type(table.of) for table in self.tables}) > 1 or (self.classes and self.shards):
            raise ScheduleError("classes are lengths or names of some tables alone; give all one, or none")
        for table in self.tables:
            self._check_table(table)
        if len({table.costs[0].joint_backward_us is None for table in self.tables}) > 1:
            raise ScheduleError("some tables have a backward and some have none; profile all in the same way")
        self._check_shards()
        found = self.branches
        if found is not None and not 0 < found.second < found.joined < len(self.layers):
            raise ScheduleError(
                f"the second branch begins at layer {found.second} and what joins both at layer "
                f"{found.joined} of {len(self.layers)}; give each branch a layer at least, and the joint"
            )

    def _check_shards(self) -> None:
        """Refuse shards of layers that the profile does not have whole."""
        whole = {table.micro_batch for table in self.tables if table.degrees[1:] == (1, 1, 1)}
        keys = [(table.micro_batch, table.shards) for table in self.shards]
        for table in self.shards:
            where = f"the shards at micro-batch size {table.micro_batch} over {table.shards} devices"
            if table.shards < 2 or len(self.layers) < 3 or table.micro_batch not in whole:
                raise ScheduleError(
                    f"{where} are of no use: they need at least 2 devices, a layer between first and last, "
                    "and a table of whole layers at their micro-batch size; leave them out"
                )
            if keys.count((table.micro_batch, table.shards)) > 1:
                raise ScheduleError(f"{where} are given twice; keep one")
            ends = (table.first, table.last)
            if any((cost.joint_backward_us is None) == self.is_training for cost in ends):
                raise ScheduleError(f"{where} are not trained as the layers are; profile all in the same way")

    def _check_table(self, table: CostTable) -> None:
        """Refuse a table that does not fit the layers."""
        where = table.degrees.title
        if min(table.degrees) < 1:
            raise ScheduleError(f"{where} is impossible; each is at least 1")
        if len(table.costs) != len(self.layers):
            raise ScheduleError(
                f"{where} has {len(table.costs)} layers, and the profile {len(self.layers)}; give each a row"
            )
        without = [cost.joint_backward_us is None for cost in table.costs]
        if any(without) and not all(without):
            name = self.layers[without.index(True)].name
            raise ScheduleError(
                f"layer {name!r} has no backward at {where}, and others have one; give it, 0 if it has none"
            )

    @property
    def classes(self) -> tuple[str | int, ...]:
        """Classes of micro-batches that were measured, in the order given; none where all are alike."""
        found = (table.of for table in self.tables if not isinstance(table.of, msgspec.UnsetType))
        return tuple(dict.fromkeys(found))

    @property
    def is_training(self) -> bool:
        """Whether the backward was measured."""
        return self.tables[0].costs[0].joint_backward_us is not None

    @property
    def is_predicted(self) -> bool:
        """Whether times are predictions with intervals."""
        return any(table.intervals for table in self.tables)

    @property
    def has_spreads(self) -> bool:
        """Whether it says how much times vary."""
        return any(any(table.spread_by_layer) for table in self.tables)

    @property
    def widened(self) -> Profile:
        """The profile with all times longer by their spreads."""
        return msgspec.structs.replace(self, tables=tuple(table.widened for table in self.tables))

    def at_bound(self, index: int) -> Profile:
        """Return the profile with all times at the low (0) or high (1) end of their intervals."""
        return msgspec.structs.replace(self, tables=tuple(table.at_bound(index) for table in self.tables))

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """The micro-batch sizes that were measured, ascending."""
        return tuple(sorted({table.micro_batch for table in self.tables}))

    @property
    def has_experts(self) -> bool:
        """Whether any layer has routed experts."""
        return any(cost.expert_bytes for table in self.tables for cost in table.costs)

    def costs(
        self,
        *,
        micro_batch: int,
        tensor_parallel: int = 1,
        context_parallel: int = 1,
        expert_parallel: int = 1,
    ) -> tuple[StageCosts, ...]:
        """Return the costs of every layer, in model order; arguments as in `Degrees`.

        Raises:
            ScheduleError: these were not measured together.
        """
        wanted = Degrees(micro_batch, tensor_parallel, context_parallel, expert_parallel)
        if self.classes:
            raise ScheduleError(
                f"{self.name} was measured with micro-batches of {', '.join(map(str, self.classes))}, and "
                "one kind is asked for; say how many of each there are, as `tessel plan --batch` does"
            )
        for table in self.tables:
            if table.degrees == wanted:
                return table.costs
        measured = ", ".join(str(table.degrees) for table in self.tables)
        raise ScheduleError(f"the profile has no {wanted.title}; it has {measured}")

    def costs_with_shards(self, *, micro_batch: int, shards: int) -> tuple[StageCosts, ...]:
        """Return the costs of every layer where first and last are divided over so many devices.

        Raises:
            ScheduleError: they were not measured so.
        """
        costs = self.costs(micro_batch=micro_batch)
        for table in self.shards:
            if (table.micro_batch, table.shards) == (micro_batch, shards):
                return (table.first, *costs[1:-1], table.last)
        raise ScheduleError(
            f"the profile has no first and last layer divided over {shards} devices at micro-batch size "
            f"{micro_batch}; measure them, or use another placement"
        )

    def costs_of_branches(self, degrees: Degrees, *, joined: int) -> tuple[StageCosts, ...]:
        """Return the costs of every layer where branches run side by side.

        A branch hands on what is its own, and what joins them is divided over more devices.

        Args:
            joined: devices over which each layer that joins them is split.

        Raises:
            ScheduleError: the model has no branches, or a degree was not measured.
        """
        if self.branches is None:
            raise ScheduleError(f"{self.name} has no two branches that meet; use another placement")
        at = self.branches.joined
        apart = self.costs(**degrees._asdict())[:at]
        together = self.costs(**degrees._replace(tensor_parallel=joined)._asdict())[at:]
        own = (
            msgspec.structs.replace(
                cost, boundary_bytes=cost.boundary_bytes - cost.relayed_bytes, relayed_bytes=0
            )
            for cost in apart
        )
        return (*own, *together)

    def with_num_layers(self, num_layers: int) -> Profile:
        """Return the profile with its second layer repeated or left out, until it has so many.

        Many published profiles measure one block of a stack and list it a few times.

        Args:
            num_layers: of the new profile, first and last included; the layers between must be alike.

        Raises:
            ScheduleError: the layers between first and last are not one repeated block within 5 %, or the
                number is below 3.
        """
        if num_layers == len(self.layers):
            return self
        if (
            num_layers < 3
            or len(self.layers) < 3
            or not all(_is_repeated(table.costs) for table in self.tables)
        ):
            raise ScheduleError(
                f"the profile has {len(self.layers)} layers, of which those between first and last are not "
                f"one repeated block, so it cannot stand for {num_layers}; profile the whole model"
            )
        inner = num_layers - 2
        prefix = "block"
        while any(layer.name.startswith(prefix) for layer in (self.layers[0], self.layers[-1])):
            prefix += "_"
        return msgspec.structs.replace(
            self,
            branches=None,
            layers=(self.layers[0], *(Layer(f"{prefix}{index}") for index in range(inner)), self.layers[-1]),
            tables=tuple(
                msgspec.structs.replace(
                    table,
                    costs=_with_inner(table.costs, inner),
                    intervals=_with_inner(table.intervals, inner) if table.intervals else (),
                    spreads=_with_inner(table.spread_by_layer, inner) if table.spreads else msgspec.UNSET,
                )
                for table in self.tables
            ),
        )


_Item = TypeVar("_Item")


def _with_inner(items: Sequence[_Item], count: int) -> tuple[_Item, ...]:
    """Return the first, the second so many times, and the last."""
    return (items[0], *[items[1]] * count, items[-1])


def _is_repeated(costs: Sequence[StageCosts]) -> bool:
    """Return whether all layers between the first and the last take as long as one another, within 5 %."""
    return all(math.isclose(cost.forward_us, costs[1].forward_us, rel_tol=0.05) for cost in costs[2:-1])

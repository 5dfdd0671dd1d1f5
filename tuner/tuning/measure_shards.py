"""Price a sharded stage: its segments measured on this machine, its collectives by bandwidth and latency.

All shards run a segment side by side and then exchange, so a function takes, segment by segment, as long as
its slowest shard, and then its collectives one after another. Segments are partitioned over the backends and
measured as a stage's functions are; those of equal structure once, whichever shard, function or stage they
belong to. Left out: contention between shards for memory and between collectives for the link, and overlap of
both. Checked in tests/tuner/tuning/test_measure_shards.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from tuner.errors import TunerError
from tuner.graph.relax_types import IRModule
from tuner.graph.structure import Structure
from tuner.plan import Figure, ShardsPlan, StagePlan
from tuner.shards import ShardedFunction, ShardedStage, Split, run_as_whole
from tuner.stages import StageFunction
from tuner.tuning.partitioned_function import PartitionedFunction, choose_partition, price_function
from tuner.tuning.session import Session
from tuner.tuning.stage_pricing import price_stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins the devices, alike between any two.

    Attributes:
        bytes_per_us: bandwidth of one device to the next.
        latency_us: time from sending to receiving nothing.
    """

    bytes_per_us: float
    latency_us: float

    def __post_init__(self) -> None:
        if not self.bytes_per_us > 0 or not self.latency_us >= 0:
            raise ValueError(
                f"a link of {self.bytes_per_us} bytes/us and {self.latency_us} us is none; give a bandwidth "
                "above 0 and a latency of at least 0"
            )

    def all_reduce_us(self, num_bytes: int, num_devices: int) -> float:
        """Return how long a ring all-reduce takes: 2 (P - 1) steps, each of a P-th of the tensor.

        Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
        MPICH" (2005), section 4.5.
        """
        steps = 2 * (num_devices - 1)
        return steps * (self.latency_us + num_bytes / num_devices / self.bytes_per_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedFigures:
    """What a sharded function costs.

    Attributes:
        segments: of each segment the slowest shard's latency, measured or predicted as the session prices.
        collectives: of each round of collectives the time, given by the link.
        total: their sum, derived.
    """

    segments: tuple[Figure, ...]
    collectives: tuple[Figure, ...]
    total: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredShards:
    """A sharded stage with its costs.

    Attributes:
        stage: over the shards.
        figures: of each function, by `forward`, `backward` and the like.
    """

    stage: ShardedStage
    figures: Mapping[str, ShardedFigures]

    def plan(self, whole: StagePlan) -> StagePlan:
        """Return the plan of the whole stage, which has the figures already, with what each shard holds."""
        shards = ShardsPlan(
            num_shards=self.stage.forward.num_shards,
            axes={
                name: layout.axis
                for name in whole.parameters
                if isinstance(layout := self.stage.layouts.get(name), Split)
            },
            collective_us={
                name: sum(figure.latency_us for figure in figures.collectives)
                for name, figures in self.figures.items()
            },
        )
        return msgspec.structs.replace(
            whole,
            weight_bytes=max(self.stage.weight_bytes),
            saved_bytes=max(self.stage.saved_bytes),
            saved_for_weight_bytes=max(self.stage.saved_for_weight_bytes),
            shards=shards,
        )


@dataclass(slots=True)
class ShardMeasurer:
    """Partitions and prices segments, each distinct one once.

    Attributes:
        session: what measures.
        launch_penalty_us: what one more partition costs.
        link: what collectives run over.
    """

    session: Session
    launch_penalty_us: float
    link: Link
    _known: dict[Structure, PartitionedFunction] = field(default_factory=dict)
    _figures: dict[Structure, Figure] = field(default_factory=dict)

    @property
    def partitioned(self) -> tuple[PartitionedFunction, ...]:
        """The distinct segments so far, partitioned, in the order in which they were met."""
        return tuple(self._known.values())

    def price(self, function: ShardedFunction, name: str) -> ShardedFigures:
        """Return what a function over shards costs.

        Args:
            function: the sharded function.
            name: what reports call it, such as `stage0.forward`.

        Raises:
            TunerError: a segment cannot be partitioned, built or measured.
        """
        segments = []
        for shards in function.segments:
            figures = [self._price_segment(part, name) for part in shards]
            segments.append(max(figures, key=lambda figure: figure.latency_us))
        collectives = tuple(
            Figure(
                latency_us=sum(
                    self.link.all_reduce_us(each.result.num_bytes, function.num_shards) for each in round_
                ),
                source="given",
            )
            for round_ in function.rounds
        )
        total_us = sum(figure.latency_us for figure in (*segments, *collectives))
        return ShardedFigures(
            segments=tuple(segments), collectives=collectives, total=_summed(segments, total_us)
        )

    def price_stage(self, stage: ShardedStage, name: str) -> MeasuredShards:
        """Return what each function of a sharded stage costs; halves of a backward only where both are.

        Raises:
            TunerError: see `price`.
        """
        functions = {"forward": stage.forward, "backward": stage.backward}
        if stage.backward_input is not None:
            functions |= {"backward_input": stage.backward_input, "backward_weight": stage.backward_weight}
        return MeasuredShards(
            stage=stage,
            figures={
                kind: self.price(function, f"{name}.{kind}")
                for kind, function in functions.items()
                if function is not None
            },
        )

    def run_as_whole(self, function: ShardedFunction, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run all shards with the partitions that were priced, and return the whole's outputs.

        Raises:
            TunerError: a segment was not priced before, or cannot run.
        """

        def run(module: IRModule, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            found = self._known.get(Structure(module))
            if found is None:
                raise TunerError("a segment is to run that was not priced; price the function first")
            return self.session.measurer.run(found.module, arrays)

        return run_as_whole(function, inputs, run)

    def _price_segment(self, part: StageFunction, name: str) -> Figure:
        structure = Structure(part.module)
        if structure not in self._known:
            priced = price_function(
                self.session, part.module, name=name, launch_penalty_us=self.launch_penalty_us
            )
            self._known[structure] = choose_partition(priced)
            self._figures[structure] = price_stage(self.session, self._known[structure])
        return self._figures[structure]


def _summed(segments: Sequence[Figure], total_us: float) -> Figure:
    """Return the sum of all, which names the measurements that it rests on."""
    records = tuple(dict.fromkeys(record for figure in segments for record in figure.record_ids))
    is_predicted = any(figure.source == "predicted" for figure in segments)
    return Figure(latency_us=total_us, source="predicted" if is_predicted else "derived", record_ids=records)

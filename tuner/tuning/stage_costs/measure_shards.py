"""Price a sharded stage: its segments measured on this machine, its collectives given or measured there too.

All shards run a segment side by side and then exchange, so a function takes, segment by segment, as long as
its slowest shard, and then its collectives one after another. Segments are partitioned over the backends and
measured as a stage's functions are; those of equal structure once, whichever shard, function or stage they
belong to. Left out: contention between shards for memory and between collectives for the link, and overlap of
both. Checked in tests/tuner/tuning/stage_costs/test_measure_shards.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import msgspec
import numpy as np

from records import Record
from tuner.errors import TunerError
from tuner.graph.relax_types import IRModule
from tuner.graph.structure import Structure
from tuner.measuring.communication.all_reduce import BACKEND, all_reduce_workload, measure_all_reduces
from tuner.partition.price import Invalid
from tuner.plan import Figure, ShardsPlan, StagePlan
from tuner.pricing.measured import price_of
from tuner.shards.interface import Collective, ShardedFunction, ShardedStage
from tuner.shards.layouts import Split
from tuner.shards.run import run_as_whole
from tuner.targets.remote import is_remote
from tuner.tuning.partitioned_function import PartitionedFunction, choose_partition, price_function
from tuner.tuning.session import Session, TuningProgress
from tuner.tuning.stage_costs.stage_pricing import count_bound_bytes, price_stages


class Collectives(Protocol):
    """What says how long all-reduces take."""

    def all_reduces(self, sizes_bytes: Sequence[int], num_devices: int) -> Sequence[Figure]:
        """Return the time of an all-reduce of each size, in order.

        Raises:
            TunerError: it cannot be found out.
        """
        ...


@dataclass(frozen=True, slots=True)
class MeasuredCollectives:
    """Collectives among ranks of this machine, measured once and kept in the records."""

    session: Session

    def all_reduces(self, sizes_bytes: Sequence[int], num_devices: int) -> Sequence[Figure]:
        """Return the time of an all-reduce of each size among as many processes as there are devices.

        Raises:
            TunerError: the target is no CPU of this machine, or the ranks failed.
        """
        session, measurer = self.session, self.session.measurer
        if session.target.kind != "cpu" or is_remote(session.target.name):
            raise TunerError(
                f"all-reduces between devices of {session.target.name} cannot be measured on one machine's "
                "processors; give what the link does with --link and --hop-us"
            )
        wanted = sorted({max(1, size) for size in sizes_bytes})
        workloads = {size: all_reduce_workload(size, num_devices) for size in wanted}
        with measurer.claimed(BACKEND):
            records = {size: measurer.find(workloads[size], BACKEND) for size in wanted}
            missing = [size for size, record in records.items() if record is None]
            measurer.new_measurements += len(missing)
            measurer.reused_measurements += len(wanted) - len(missing)
            if missing:
                session.on_progress(TuningProgress(text=f"measuring all-reduces among {num_devices} ranks"))
                environment = measurer.environment(BACKEND)
                made = measure_all_reduces(
                    missing, num_devices, target=session.target, environment=environment
                )
                session.store.append_many(
                    [(workloads[size], each) for size, each in zip(missing, made, strict=True)]
                )
                records |= {size: measurer.find(workloads[size], BACKEND) for size in missing}
        return [_measured(records[max(1, size)]) for size in sizes_bytes]


def _measured(record: Record | None) -> Figure:
    assert record is not None, "what was missing has been measured"
    price = price_of(record)
    if isinstance(price, Invalid):
        raise TunerError(f"an all-reduce has no latency ({price.reason}); give --link and --hop-us")
    return price


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedFigures:
    """What a sharded function costs.

    Attributes:
        segments: of each segment the slowest shard's latency, measured or predicted as the session prices.
        collectives: of each round of collectives the time, given by a link or summed of measured ones.
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
        bound_bytes: of what the shard that makes most of its weights, once, keeps beside them.
    """

    stage: ShardedStage
    figures: Mapping[str, ShardedFigures]
    bound_bytes: int

    def plan(self, whole: StagePlan, *, weights: Mapping[str, str] = MappingProxyType({})) -> StagePlan:
        """Return the plan of a whole stage with what its shards take and hold.

        Args:
            whole: the plan of the stage that was divided, or of one of equal structure.
            weights: of the latter, the weights of the stage that was divided by those in their place.
        """
        totals = {name: figures.total for name, figures in self.figures.items()}
        shards = ShardsPlan(
            num_shards=self.stage.forward.num_shards,
            axes={
                name: layout.axis
                for name in whole.parameters
                if isinstance(layout := self.stage.layouts.get(weights.get(name, name)), Split)
            },
            collective_us={
                name: sum(figure.latency_us for figure in figures.collectives)
                for name, figures in self.figures.items()
            },
            collective_source="given"
            if all(
                each.source == "given" for figures in self.figures.values() for each in figures.collectives
            )
            else "measured",
        )
        return msgspec.structs.replace(
            whole,
            forward=totals["forward"],
            backward=totals.get("backward"),
            backward_input=totals.get("backward_input"),
            backward_weight=totals.get("backward_weight"),
            weight_bytes=max(self.stage.weight_bytes),
            bound_bytes=self.bound_bytes,
            saved_bytes=max(self.stage.saved_bytes),
            saved_for_weight_bytes=max(self.stage.saved_for_weight_bytes),
            shards=shards,
        )


@dataclass(slots=True)
class ShardMeasurer:
    """Partitions and prices segments, each distinct one once.

    Attributes:
        launch_penalty_us: what one more partition costs.
        collectives: what says how long all-reduces take.
    """

    session: Session
    launch_penalty_us: float
    collectives: Collectives
    _known: dict[Structure, PartitionedFunction] = field(default_factory=dict)
    _figures: dict[Structure, Figure] = field(default_factory=dict)

    @property
    def partitioned(self) -> tuple[PartitionedFunction, ...]:
        """The distinct segments so far, partitioned, in the order in which they were met."""
        return tuple(self._known.values())

    def price(self, function: ShardedFunction, name: str) -> ShardedFigures:
        """Return what a function over shards costs.

        Args:
            name: what reports call it, such as `stage0.forward`.

        Raises:
            TunerError: a segment cannot be partitioned, built or measured.
        """
        self._price_segments({name: function})
        segments = [
            max((self._figures[Structure(part.module)] for part in shards), key=lambda each: each.latency_us)
            for shards in function.segments
        ]
        collectives = tuple(self._price_round(round_, function.num_shards) for round_ in function.rounds)
        total_us = sum(figure.latency_us for figure in (*segments, *collectives))
        return ShardedFigures(
            segments=tuple(segments),
            collectives=collectives,
            total=_summed((*segments, *collectives), total_us),
        )

    def price_stage(self, stage: ShardedStage, name: str) -> MeasuredShards:
        """Return what each function of a sharded stage costs; halves of a backward only where both are.

        Raises:
            TunerError: see `price`.
        """
        functions = stage.functions()
        # All sizes at once: starting ranks to measure them takes longer than measuring them.
        sizes = {
            each.result.num_bytes
            for function in functions.values()
            for round_ in function.rounds
            for each in round_
        }
        if sizes:
            self.collectives.all_reduces(sorted(sizes), stage.forward.num_shards)
        self._price_segments({f"{name}.{kind}": function for kind, function in functions.items()})
        return MeasuredShards(
            stage=stage,
            figures={kind: self.price(function, f"{name}.{kind}") for kind, function in functions.items()},
            bound_bytes=max(
                sum(count_bound_bytes(self.session, self._known[Structure(part.module)]) for part in of_shard)
                for of_shard in zip(*stage.forward.segments, strict=True)
            ),
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

    def _price_round(self, collectives: Sequence[Collective], num_shards: int) -> Figure:
        """Return the time of a round: its all-reduces one after the other."""
        sizes = [each.result.num_bytes for each in collectives]
        found = self.collectives.all_reduces(sizes, num_shards) if sizes else ()
        if len(found) == 1:
            return found[0]
        total_us = sum(figure.latency_us for figure in found)
        if all(figure.source == "given" for figure in found):
            return Figure(latency_us=total_us, source="given")
        return _summed(found, total_us)

    def _price_segments(self, functions: Mapping[str, ShardedFunction]) -> None:
        """Partition the segments that are new, and measure them together, so that they build in parallel."""
        missing: list[Structure] = []
        for name, function in functions.items():
            for part in itertools.chain.from_iterable(function.segments):
                structure = Structure(part.module)
                if structure not in self._known:
                    priced = price_function(
                        self.session, part.module, name=name, launch_penalty_us=self.launch_penalty_us
                    )
                    self._known[structure] = choose_partition(priced)
                if structure not in self._figures and structure not in missing:
                    missing.append(structure)
        found = price_stages(self.session, [self._known[structure] for structure in missing])
        self._figures.update(zip(missing, found, strict=True))


def _summed(segments: Sequence[Figure], total_us: float) -> Figure:
    """Return the sum of all, which names the measurements that it rests on."""
    records = tuple(dict.fromkeys(record for figure in segments for record in figure.record_ids))
    is_predicted = any(figure.source == "predicted" for figure in segments)
    return Figure(latency_us=total_us, source="predicted" if is_predicted else "derived", record_ids=records)

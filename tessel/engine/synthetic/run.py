"""Run schedules on real ranks with synthetic, sleeping stages: the cost of the orders without any model.

Torch-free; the stages themselves stand in `tessel.engine.synthetic.stages`. Checked in
tests/tessel/engine/synthetic/test_overheads.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tessel.batches import Batch
from tessel.engine.actions import actions_of, check_chain, rank_by_stage, stages_before
from tessel.engine.devices import CPUS, DeviceKind, Devices
from tessel.engine.job import JobSpec, RankResult, RunSpec, actions_as_lines
from tessel.engine.ranks.launch import launch
from tessel.handwritten.construction.stages import read_pipeline
from tessel.placement import Placement
from tessel.schedule import Schedule

PROVIDER = "tessel.engine.synthetic.stages:provide_programs"


class SleepSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long every stage sleeps.

    Attributes:
        seconds: for each stage, seconds by the letter of the action.
        by_micro_batch: the same of each micro-batch, where they differ; empty where they do not.
        ranks: the ranks of each stage, ascending.
        before: the stages that each stage receives from.
        device: where the tensors are that cross borders; sleeping is the host's.
        holds_collectives: whether the time of a stage on several ranks contains its collectives.
    """

    seconds: tuple[dict[str, float], ...]
    ranks: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, ...], ...]
    by_micro_batch: tuple[tuple[dict[str, float], ...], ...] = ()
    device: DeviceKind = "cpu"
    holds_collectives: bool = False


def sleep_spec(
    placement: Placement, *, step_us: float, device: DeviceKind = "cpu", batch: Batch | None = None
) -> SleepSpec:
    """Return stages that take as long as the placement's blocks.

    Args:
        placement: its blocks are stages, in a chain or in branches.
        step_us: microseconds of one step of its spans.
        device: where the tensors are that cross borders.
        batch: what blocks take by micro-batch; None where the placement says it of all.

    Raises:
        NotAPipelineError: its blocks are no stages.
    """
    pipeline = read_pipeline(placement)

    def seconds_of(spans: Sequence[int]) -> tuple[dict[str, float], ...]:
        return tuple(
            {
                letter: spans[block] * step_us / 1e6
                for letter, block in zip(
                    "FBIW", (stage.forward, stage.joint, stage.input, stage.weight), strict=True
                )
                if block is not None
            }
            for stage in pipeline.stages
        )

    by_class = () if batch is None else tuple(seconds_of(each.spans) for each in batch.classes)
    return SleepSpec(
        seconds=seconds_of([block.span for block in placement.blocks]),
        by_micro_batch=() if batch is None else tuple(by_class[each] for each in batch.sequence),
        ranks=tuple(tuple(sorted(stage.devices)) for stage in pipeline.stages),
        before=tuple(stage.before for stage in pipeline.stages),
        device=device,
    )


def run_synthetic(
    schedules: Mapping[str, Schedule],
    *,
    step_us: float,
    repeats: int,
    timeout_s: float,
    devices: Devices = CPUS,
    holds_collectives: bool = False,
) -> tuple[RankResult, ...]:
    """Run schedules of one placement in turn; return what every rank reports.

    Args:
        schedules: by name.
        step_us: microseconds of one step of their spans.
        repeats: counted steps of each.
        timeout_s: longest the ranks may take.
        devices: where each rank keeps its tensors, and what carries them.
        holds_collectives: whether spans of blocks on several devices contain their collectives.

    Raises:
        EngineError: a schedule cannot be run, or a rank failed.
    """
    first = next(iter(schedules.values()))
    check_chain(first.placement, branches=stages_before(first))
    spec = msgspec.structs.replace(
        sleep_spec(first.placement, step_us=step_us, device=devices.kind), holds_collectives=holds_collectives
    )
    return launch(
        JobSpec(
            num_ranks=first.placement.devices,
            ranks_by_stage=rank_by_stage(first),
            micro_batches=first.micro_batches,
            provider=PROVIDER,
            provider_spec=msgspec.json.encode(spec).decode(),
            runs=tuple(
                RunSpec(name=name, actions=actions_as_lines(actions_of(schedule)))
                for name, schedule in schedules.items()
            ),
            repeats=repeats,
            num_threads=1,
            devices=devices,
            write_gradients=False,
            stages_before=stages_before(first),
        ),
        timeout_s=timeout_s,
    )

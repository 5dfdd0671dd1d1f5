"""Overheads are what events show, are measured once, and lengthen a simulation as they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from records import Environment, open_store
from tessel.engine.devices import CPUS
from tessel.engine.job import Event
from tessel.engine.run import makespan_ms
from tessel.engine.synthetic import overheads as module
from tessel.engine.synthetic.overheads import (
    Calibration,
    Overheads,
    collective_us_of,
    known_overheads,
    makespan_with_overheads_ms,
    overheads_of_chain,
)
from tessel.engine.synthetic.run import run_synthetic
from tessel.handwritten import HANDWRITTEN
from tessel.schedule import Schedule
from tessel.shapes import make_shape

MACHINE = Environment(
    device_kind="cpu", device_model="any", num_cores=2, num_threads=8, driver="1", versions=(("tvm", "1"),)
)


def one_f_one_b(shape: str, num_devices: int, micro_batches: int) -> Schedule:
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    return rule.build(make_shape(shape, num_devices), micro_batches=micro_batches)


def always(*overheads_us: float) -> Calibration:
    """Return overheads that do not depend on how long a block takes; the fourth may be left out."""
    return Calibration((1.0,), (Overheads(*(*overheads_us, 0.0)[:4]),))


def test_overheads_of_a_step_drawn_by_hand() -> None:
    """F takes 1 s and half of that again; rank 1 starts 0.25 s after what it waits for."""
    step = [
        (
            Event(action="0F0", ready_s=0.0, start_s=0.0, end_s=1.5),
            Event(action="0F1", ready_s=1.5, start_s=1.5, end_s=3.0),
        ),
        (Event(action="1F0", ready_s=0.0, start_s=1.75, end_s=3.25),),
    ]
    found = overheads_of_chain(step, [{"F": 1.0}, {"F": 1.0}])
    assert found == pytest.approx(Overheads(action_us=5e5, gap_us=0.0, hop_us=2.5e5, collective_us=0.0))


def test_a_collective_lasts_from_the_last_start_to_the_last_end() -> None:
    """The rank that comes first waits: that is no overhead. The block of one rank alone does not count."""
    step = [
        (
            Event(action="0F0", ready_s=0.0, start_s=0.0, end_s=3.0),
            Event(action="1F0", ready_s=3.0, start_s=3.0, end_s=9.0),
        ),
        (Event(action="0F0", ready_s=0.0, start_s=1.5, end_s=3.25),),
    ]
    assert collective_us_of(step, [{"F": 1.0}, {"F": 1.0}]) == pytest.approx(0.75e6)


def test_blocks_on_all_ranks_are_longer_by_their_collective() -> None:
    """The m on two devices with one micro-batch is a chain, with a forward and a backward on both."""
    schedule = one_f_one_b("mshape", 2, 1)
    shared = [block for block in schedule.placement.blocks if len(block.devices) > 1]
    assert len(shared) == 2
    found_ms = makespan_with_overheads_ms(schedule, always(100.0, 0.0, 0.0, 700.0), step_us=1000.0)
    assert found_ms == pytest.approx(schedule.makespan + 4 * 0.1 + 2 * 0.7)


def test_a_simulation_with_overheads_adds_them_along_the_longest_way() -> None:
    """Two stages, one micro-batch: four actions one after the other, and two hops between ranks."""
    schedule = one_f_one_b("vshape", 2, 1)
    assert schedule.makespan == 8
    found_ms = makespan_with_overheads_ms(schedule, always(100.0, 50.0, 250.0), step_us=1000.0)
    assert found_ms == pytest.approx(8 + 4 * 0.15 + 2 * 0.2)


def test_overheads_are_those_of_each_blocks_own_duration() -> None:
    """The forward takes a step, the backward three: a tenth and three tenths of a millisecond more."""
    calibration = Calibration(
        (1000.0, 5000.0), (Overheads(100.0, 0.0, 0.0, 0.0), Overheads(500.0, 0.0, 0.0, 800.0))
    )
    assert calibration.at(2000.0) == pytest.approx(Overheads(200.0, 0.0, 0.0, 200.0))
    assert [calibration.at(duration_us).action_us for duration_us in (0.0, 1e6)] == [100.0, 500.0]
    assert calibration.without_actions().at(3000.0) == Overheads(0.0, 0.0, 0.0, 0.0)
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    schedule = rule.build(make_shape("vshape", 2, backward_span=3), micro_batches=1)
    found_ms = makespan_with_overheads_ms(schedule, calibration, step_us=1000.0)
    assert found_ms == pytest.approx(8 + 2 * 0.1 + 2 * 0.3)


def test_a_rank_that_holds_both_ends_of_an_edge_pays_no_hop() -> None:
    """The embedding of an m on one device: nothing travels."""
    schedule = one_f_one_b("mshape", 1, 1)
    none = makespan_with_overheads_ms(schedule, always(0.0, 0.0, 0.0), step_us=1000.0)
    assert makespan_with_overheads_ms(schedule, always(0.0, 0.0, 900.0), step_us=1000.0) == none


@pytest.mark.torch
def test_a_block_that_holds_its_collectives_lasts_from_the_last_arrival() -> None:
    """One rank comes later than the other, and neither leaves before its time is over from then."""
    pytest.importorskip("torch")
    schedule = one_f_one_b("mshape", 2, 2)
    step_s = 0.1
    results = run_synthetic(
        {"m": schedule}, step_us=1e6 * step_s, repeats=1, timeout_s=120, holds_collectives=True
    )
    (steps,) = zip(*(result.events["m"] for result in results), strict=True)
    by_action = [{event.action: event for event in own} for own in steps]
    shared = by_action[0].keys() & by_action[1].keys()
    assert len(shared) == 4  # forward and backward of two micro-batches
    waited = 0
    for action in shared:
        own = [events[action] for events in by_action]
        last_s = max(event.start_s for event in own)
        assert all(event.end_s >= last_s + 0.6 * step_s for event in own)
        waited += max(event.start_s for event in own) - min(event.start_s for event in own) > step_s / 2
    assert waited


@pytest.mark.torch
@pytest.mark.slow
def test_real_ranks_are_measured_once_and_then_found_in_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(module, "_REPEATS", 1)
    with open_store(str(tmp_path / "records.db")) as store:
        first = known_overheads(store, 2, target="cpu", machine=MACHINE)
        assert first.is_new
        assert all(min(own) > 0 for own in first.calibration.overheads)
        kept = list(store.iterate(role="device"))
        assert len(kept) == 8
        assert kept[0].measurement.environment.num_threads == 1
        assert "torch" in dict(kept[0].measurement.environment.versions)
        monkeypatch.setattr(module, "run_synthetic", None)  # Nothing may run from here on.
        again = known_overheads(store, 2, target="cpu", machine=MACHINE)
        assert again == (first.calibration, False)
        with pytest.raises(TypeError):
            known_overheads(store, 3, target="cpu", machine=MACHINE)


@pytest.mark.slow
@pytest.mark.torch
def test_stages_that_sleep_take_at_least_as_long_as_simulated_on_shared_blocks_too() -> None:
    pytest.importorskip("torch")
    schedule = one_f_one_b("mllm", 2, 2)
    results = run_synthetic({"1f1b": schedule}, step_us=2000.0, repeats=1, timeout_s=240)
    (step,) = zip(*(result.events["1f1b"] for result in results), strict=True)
    assert makespan_ms(step) >= schedule.makespan * 2
    assert [len(events) for events in step] == [12, 12]


def test_a_renamed_overhead_is_found_by_the_name_in_the_records() -> None:
    names = [dict(workload.parameters)["overhead"] for workload in module._workloads(2, 10, CPUS)]
    assert names == ["action", "gap", "hop", "meeting"]

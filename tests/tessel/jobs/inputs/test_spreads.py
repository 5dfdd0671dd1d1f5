"""Measured distributions of durations against rows of their files, and makespans against sums of draws."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np
import pytest

from records.files.exchange import encode_line
from records.record import Record
from tessel.batches.spread import QUANTILES, Spread
from tessel.errors import UsageError
from tessel.jobs.inputs.spreads import spread_of
from tessel.schedule import Schedule
from tessel.search.batches.sampled import SAMPLES, spread_of_makespan
from tessel.shapes import vshape
from tests.records.strategies import make_measurement, make_workload

STEPS = Path(__file__).parents[4] / "examples" / "checking" / "steps.csv"


def test_recorded_steps_have_the_deviations_of_their_rows() -> None:
    found = spread_of(str(STEPS))
    kinds = defaultdict(list)
    with STEPS.open() as file:
        for row in csv.DictReader(file):
            if row["optype"].endswith("-compute"):
                kinds[row["stage"], row["optype"]].append(float(row["duration"]))
    shares = np.concatenate([np.array(own) / np.mean(own) for own in kinds.values()])
    assert sorted(found.seen) == pytest.approx(sorted(shares))
    assert found.size == pytest.approx(shares.std())
    assert str(found).startswith(f"measured ({len(shares)} samples of steps.csv")
    assert set(found.factors(np.random.default_rng(0), (50,)).tolist()) <= set(found.seen)


def test_records_have_the_spread_of_their_samples(tmp_path: Path) -> None:
    workload = make_workload()
    lines = []
    for number, samples in enumerate([(9.0, 11.0) * 8, (3.0,), (100.0, 100.0, 130.0, 70.0)]):
        measurement = msgspec.structs.replace(make_measurement(workload), samples_us=samples)
        lines.append(encode_line(Record(record_id=number, workload=workload, measurement=measurement)))
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert sorted(spread_of(str(path)).seen) == pytest.approx([0.7, *[0.9] * 8, 1, 1, *[1.1] * 8, 1.3])
    path.write_bytes(lines[0] + b"\n")
    with pytest.raises(UsageError, match=r"holds 16 samples .* at least"):
        spread_of(str(path))


@pytest.mark.parametrize("text", ["gauss:0.1", "lognormal:3", "lognormal"])
def test_what_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"write lognormal:0\.1"):
        spread_of(text)


def test_replicas_of_one_device_take_the_largest_sum_of_their_draws() -> None:
    placement = vshape(1, forward_span=10, backward_span=20)
    starts = {(block, each): 30 * each + 10 * block for each in range(6) for block in (0, 1)}
    schedule = Schedule.of(placement, starts, micro_batches=6)
    spread = Spread.of("lognormal:0.4")
    found = spread_of_makespan([schedule, schedule], spread, seed=7)
    rng = np.random.default_rng(7)
    sums = [(spread.factors(rng, (SAMPLES, 6, 2)) * [10, 20]).sum(axis=(1, 2)) for _ in range(2)]
    slowest = np.maximum(*sums)
    assert found.mean == pytest.approx(slowest.mean())
    assert found.quantiles == pytest.approx(np.percentile(slowest, QUANTILES))
    assert found.greedy_ratio == pytest.approx(1)  # one device never waits

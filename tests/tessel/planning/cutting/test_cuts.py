"""Cuts against all cuts of small models, and descents against what they promise."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from tessel.planning.candidates.families import Family
from tessel.planning.costs.stage_costs import TableKey, layer_sums
from tessel.planning.costs.stage_figures import stage_figures
from tessel.planning.cutting.chain_cut import chain_cut
from tessel.planning.cutting.chunked_cut import ChunkedDevices, chunked_cut
from tessel.planning.cutting.cut import Cut, Section, every_cut, neighbours, transfers
from tessel.planning.cutting.descent import EVENNESS
from tessel.planning.cutting.run_prices import RunPrices, run_prices
from tessel.planning.job import Job
from tessel.planning.sharding import Shares
from tests.samples.plan_samples import MIB, random_profile, small_cluster

RATIO = 4.0


def prices_of(seed: int, layers: int, *, is_split: bool = False) -> RunPrices:
    profile = random_profile(np.random.default_rng(seed), layers, is_split=is_split, is_tied=seed % 2 == 1)
    return run_prices(
        layer_sums(profile, TableKey(1)), splits=is_split, shares=Shares(weights=1.0, trained=RATIO)
    )


def longest_stage(
    prices: Sequence[RunPrices],
    cut: Cut,
    in_flight: tuple[int, ...],
    limits: tuple[int, ...] | None,
    speeds: list[float],
) -> float | None:
    """Return the longest stage of a cut, or None where a stage does not fit."""
    longest = 0.0
    stages = zip(prices, itertools.pairwise(cut.bounds), cut.recompute, in_flight, speeds, strict=True)
    for stage, (own, run, again, flights, speed) in enumerate(stages):
        time, held = own.time[run], own.static[run] + flights * own.saved[run]
        if again:
            time += own.recompute[run]
            held = own.recomputed_static[run] + flights * own.kept[run]
        if limits is not None and held > limits[stage]:
            return None
        longest = max(longest, time / speed)
    return longest


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("limit", [None, 160, 90])
def test_chain_cut_has_the_least_longest_stage(seed: int, limit: int | None) -> None:
    # Of every other seed the stages have three tables, as of unequal tensor-parallel degrees.
    prices = [prices_of(seed + 10 * stage * (seed % 2), 6, is_split=seed > 3) for stage in range(3)]
    speeds = [1.0, 0.8, 1.3]
    in_flight = (3, 2, 1)
    limits = None if limit is None else (limit * MIB, limit * MIB, (limit + 20) * MIB)
    given = prices if seed % 2 else prices[:1]
    found = chain_cut(given, in_flight=in_flight, speeds=np.array(speeds), limits=limits, may_recompute=True)
    values = [
        value
        for cut in every_cut([Section(0, 6, 3)], may_recompute=True)
        if (value := longest_stage(prices, cut, in_flight, limits, speeds)) is not None
    ]
    if not values:
        assert found is None
        return
    assert found is not None
    assert longest_stage(prices, found, in_flight, limits, speeds) == pytest.approx(min(values))


@pytest.mark.parametrize("placement", ["zbv", "interleaved", "xshape"])
def test_chunked_cuts_are_even_and_fit(placement: str) -> None:
    num_stages = 2 if placement == "xshape" else 4
    devices = {"zbv": (0, 1, 1, 0), "interleaved": (0, 1, 0, 1), "xshape": (0, 1, 1, 0)}[placement]
    for seed in range(6):
        prices = prices_of(seed, 9)
        chunked = ChunkedDevices(
            devices=devices, in_flight=(1.0,) * num_stages, speeds=np.ones(2), limits=None, may_recompute=True
        )
        found = chunked_cut(prices, chunked, num_stages)
        assert found is not None
        best = min(
            _largest_load(prices, cut, devices)
            for cut in every_cut([Section(0, 9, num_stages)], may_recompute=False)
        )
        assert _largest_load(prices, found, devices) <= 1.1 * best
        held = _held(prices, found, devices)
        tight = ChunkedDevices(
            devices=devices,
            in_flight=(1.0,) * num_stages,
            speeds=np.ones(2),
            limits=(0.97 * max(held),) * 2,
            may_recompute=True,
        )
        fitting = chunked_cut(prices, tight, num_stages)
        assert fitting is None or max(_held(prices, fitting, devices)) <= 0.97 * max(held)


@pytest.mark.parametrize("placement", ["zbv", "interleaved"])
@pytest.mark.parametrize("part", [0.85, 0.6])
def test_tight_chunked_cuts_weigh_recomputation_against_uneven_loads(placement: str, part: float) -> None:
    devices = {"zbv": (0, 1, 1, 0), "interleaved": (0, 1, 0, 1)}[placement]
    in_flight = (4.0, 4.0, 4.0, 4.0)
    ratios = []
    for seed in range(6):
        prices = prices_of(seed, 8)
        even = chunked_cut(prices, _two_devices(devices, in_flight, None), 4)
        assert even is not None
        limit = part * max(_held(prices, even, devices, 4.0))
        found = chunked_cut(prices, _two_devices(devices, in_flight, (limit, limit)), 4)
        fitting = [
            _largest_load(prices, cut, devices)
            for cut in every_cut([Section(0, 8, 4)], may_recompute=True)
            if max(_held(prices, cut, devices, 4.0)) <= limit
        ]
        if found is None:
            assert not fitting or part < 0.7
            continue
        assert max(_held(prices, found, devices, 4.0)) <= limit
        ratios.append(_largest_load(prices, found, devices) / min(fitting))
    assert np.exp(np.mean(np.log(ratios))) <= 1.08
    assert max(ratios) <= 1.25


def _two_devices(
    devices: tuple[int, ...], in_flight: tuple[float, ...], limits: tuple[float, ...] | None
) -> ChunkedDevices:
    return ChunkedDevices(
        devices=devices, in_flight=in_flight, speeds=np.ones(2), limits=limits, may_recompute=True
    )


def test_no_layer_wants_to_another_stage_however_far() -> None:
    devices = (0, 1, 2, 3) * 2
    for seed in range(12):
        prices = prices_of(seed, 20)
        chunked = ChunkedDevices(
            devices=devices, in_flight=(1.0,) * 8, speeds=np.ones(4), limits=None, may_recompute=False
        )
        found = chunked_cut(prices, chunked, 8)
        assert found is not None
        evenness = _evenness(prices, found, devices)
        for other in transfers(found, prices):
            sizes = np.diff(other.bounds)
            assert min(sizes) >= 1
            assert sum(sizes) == 20
            assert _evenness(prices, other, devices) >= evenness * (1 - 1e-9)


def _evenness(prices: RunPrices, cut: Cut, devices: tuple[int, ...]) -> float:
    load = np.zeros(max(devices) + 1)
    for device, run in zip(devices, itertools.pairwise(cut.bounds), strict=True):
        load[device] += prices.time[run]
    return float(((load / load.mean()) ** EVENNESS).sum())


def _largest_load(prices: RunPrices, cut: Cut, devices: tuple[int, ...]) -> float:
    load = [0.0, 0.0]
    runs = list(itertools.pairwise(cut.bounds))
    for stage, device in enumerate(devices):
        run = runs[stage % len(runs)]
        load[device] += prices.time[run] + cut.recompute[stage % len(runs)] * prices.recompute[run]
    return max(load)


def _held(prices: RunPrices, cut: Cut, devices: tuple[int, ...], in_flight: float = 1.0) -> list[float]:
    held = [0.0, 0.0]
    runs = list(itertools.pairwise(cut.bounds))
    for stage, device in enumerate(devices):
        run = runs[stage % len(runs)]
        again = cut.recompute[stage % len(runs)]
        held[device] += float(
            prices.recomputed_static[run] + in_flight * prices.kept[run]
            if again
            else prices.static[run] + in_flight * prices.saved[run]
        )
    return held


def test_neighbours_differ_by_one_move_and_are_cuts() -> None:
    profile = random_profile(np.random.default_rng(3), 7)
    family = Family(
        data_parallel=1,
        pipeline=3,
        tensor_parallel=1,
        micro_batch=1,
        micro_batches=4,
        placement="vshape",
        num_stages=3,
        split_backward=False,
    )
    cut = Cut((0, 2, 5, 7), (False, True, False))
    layout = family.layout(cut.bounds, cut.recompute)
    figures = stage_figures(profile, layout, Job(cluster=small_cluster(3)))
    found = list(neighbours(cut, figures, may_recompute=True))
    assert len(found) == len(set(found)) + 0
    for other in found:
        family.layout(other.bounds, other.recompute)  # is valid
        moved = sum(a != b for a, b in zip(cut.bounds, other.bounds, strict=True))
        flipped = sum(a != b for a, b in zip(cut.recompute, other.recompute, strict=True))
        assert moved + flipped == 1
    assert {flip.recompute for flip in found if flip.bounds == cut.bounds} == {
        (True, True, False),
        (False, False, False),
        (False, True, True),
    }

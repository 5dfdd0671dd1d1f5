"""Chunks of prompts against every way to cut them, timed by other code, and against rules of others."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tessel.batches.chunk_law import ChunkLaw, MeasuredChunk, fit_chunk_law
from tessel.errors import InfeasibleError, ScheduleError
from tessel.orders import Task, earliest_starts
from tessel.search.batches import chunks as search
from tessel.search.batches.chunk_rules import dynamic_chunks, equal_chunks
from tessel.search.batches.chunks import Prefill, chunk_schedule, find_chunks
from tessel.validation import check_schedule

LONG = Prefill(
    prompt=131072,
    law=ChunkLaw(launch_us=3000, token_us=60, pair_us=8e-4),
    factors=(1.0,) * 4,
)
"""Close to a stage of DeepSeek-V3 on eight H20: 12288 tokens take 0.8 s, the last ones double."""


def finished_us(prefill: Prefill, sizes: tuple[int, ...]) -> float:
    """Return the end of the last stage, jobs one after the other."""
    jobs, before = [], 0
    for size in sizes:
        whole = prefill.law.pair_us * ((before + size) ** 2 - before**2) / 2
        jobs += [prefill.law.launch_us + prefill.law.token_us * size + whole, prefill.decode_us]
        before += size
    ends = [0.0] * len(prefill.factors)
    for job in jobs[:-1]:
        arrival = 0.0
        for stage, factor in enumerate(prefill.factors):
            ends[stage] = max(ends[stage], arrival) + factor * job
            arrival = ends[stage] + prefill.hop_us
    return ends[-1]


def least_us(prefill: Prefill) -> float:
    places = range(prefill.multiple, prefill.prompt, prefill.multiple)
    best = float("inf")
    for number in range(len(places) + 1):
        for cuts in itertools.combinations(places, number):
            sizes = tuple(np.diff((0, *cuts, prefill.prompt)).tolist())
            if max(sizes) <= prefill.largest:
                best = min(best, finished_us(prefill, sizes))
    return best


@pytest.mark.parametrize("cuts", [search.MAX_CUTS, 0])
def test_no_way_to_cut_a_short_prompt_is_shorter(cuts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every way tried, and with what is done for long prompts; stages alike are proven by both."""
    monkeypatch.setattr(search, "MAX_CUTS", cuts)
    rng = np.random.default_rng(1)
    for case in range(12):
        prefill = Prefill(
            prompt=int(rng.integers(30, 80)),
            law=ChunkLaw(
                launch_us=rng.uniform(0, 60), token_us=rng.uniform(0.01, 1), pair_us=rng.uniform(0, 0.01)
            ),
            factors=(1.0,) * int(rng.integers(1, 5)) if case % 2 else tuple(rng.uniform(0.5, 2, 3).tolist()),
            multiple=10,
            max_chunk=int(rng.choice([20, 40, 1000])),
            hop_us=float(rng.choice([0, 5])),
            decode_us=float(rng.choice([0, 15])),
        )
        found, best = find_chunks(prefill), least_us(prefill)
        assert found.time_us == pytest.approx(finished_us(prefill, found.chunks), rel=1e-9)
        assert found.lower_bound_us <= best * (1 + 1e-9)
        assert best <= found.time_us * (1 + 1e-9)
        assert found.time_us <= best * (1 if cuts or case % 2 else 1.05) * (1 + 1e-9)
        assert sum(found.chunks) == prefill.prompt
        assert max(found.chunks) <= prefill.largest
        assert all(each % 10 == 0 for each in found.chunks[:-1])
        if cuts or (case % 2 and not prefill.decode_us and prefill.max_chunk == 1000):
            assert found.optimal


def test_a_long_prompt_is_proven_and_within_the_published_rule() -> None:
    found = find_chunks(LONG)
    assert found.optimal
    equal, dynamic = found.rules
    assert found.time_us <= dynamic.time_us <= found.time_us * 1.03
    assert found.time_us * 1.005 < equal.time_us
    # Chunks of equal times by the published rule, strictly: its number of them, and each of its sizes.
    rule = dynamic_chunks(LONG.law, LONG.prompt, initial=found.chunks[0], smoothing=1, multiple=64)
    assert abs(len(rule) / len(found.chunks) - 1) <= 0.03
    ends, others = np.cumsum(found.chunks[:-1]), np.cumsum(rule)
    assert np.abs(np.interp(np.arange(len(ends)), np.arange(len(rule)), others) / ends - 1).max() <= 0.03
    # A stage that is slower than those before lets chunks grow, which no rule does.
    uneven = find_chunks(replace(LONG, prompt=32768, factors=(1.0, 1.0, 1.0, 1.07), multiple=256))
    assert uneven.gap < 0.02
    assert all(uneven.time_us < each.time_us for each in uneven.rules)
    assert uneven.chunks[-1] > uneven.chunks[0]


def test_limits_are_kept_or_refused() -> None:
    waiting = find_chunks(replace(LONG, prompt=32768, max_wait_us=40_000, decode_us=1500))
    assert waiting.longest_wait_us <= 40_000
    capped = find_chunks(replace(LONG, prompt=32768, max_chunk=512))
    assert max(capped.chunks) <= 512
    with pytest.raises(InfeasibleError, match="a chunk of 64 tokens at the end of 131072 takes"):
        find_chunks(replace(LONG, max_wait_us=3000))


def test_rules_of_frameworks_by_hand() -> None:
    assert equal_chunks(10, 4) == (4, 4, 2)
    law = ChunkLaw(launch_us=7, token_us=1, pair_us=0.5)
    # 16 tokens take 16 + 64; after 16 so do x = 7.4 with x + 0.5 x (16 + x / 2) = 80, after 23 5.7, after 28
    # 4.9, after 32 4.4; none is less than 16 / 4.
    assert dynamic_chunks(law, 40, initial=16, smoothing=1, multiple=1) == (16, 7, 5, 4, 4, 4)
    assert set(dynamic_chunks(law, 120, initial=16, smoothing=1, multiple=1)[5:]) == {4}
    assert dynamic_chunks(law, 40, initial=16, smoothing=0.5, multiple=4)[:2] == (16, 8)
    assert dynamic_chunks(law, 40, initial=16, smoothing=0, multiple=4) == (16, 16, 8)
    flat = ChunkLaw(launch_us=7, token_us=1, pair_us=0)
    assert dynamic_chunks(flat, 40, initial=16, smoothing=1, multiple=1) == (16, 16, 8)


def test_a_schedule_of_chunks_is_valid_and_as_long() -> None:
    found = find_chunks(replace(LONG, prompt=8192, multiple=512, hop_us=20, decode_us=900))
    schedule = chunk_schedule(found)
    check_schedule(schedule)
    assert schedule.micro_batches == 2 * len(found.chunks) - 1
    assert abs(schedule.makespan - found.time_us) < 4 * schedule.micro_batches
    orders = tuple(tuple(Task(stage, each) for each in range(schedule.micro_batches)) for stage in range(4))
    starts = earliest_starts(schedule.placement, orders, schedule.classes)
    assert dict(starts) == schedule.start_by_block()


def test_a_law_is_fitted_to_measured_chunks() -> None:
    law = ChunkLaw(launch_us=300, token_us=2, pair_us=0.001)
    rng = np.random.default_rng(0)
    exact = [
        MeasuredChunk(tokens, prefix, law.us(prefix, tokens))
        for tokens in (64, 512, 4096)
        for prefix in (0, 8192, 65536)
    ]
    found = fit_chunk_law(exact)
    assert found.worst_error < 1e-9
    assert (found.law.launch_us, found.law.token_us, found.law.pair_us) == pytest.approx((300, 2, 0.001))
    noisy = fit_chunk_law([each._replace(time_us=each.time_us * rng.uniform(0.98, 1.02)) for each in exact])
    assert 0.001 < noisy.mean_error < 0.02
    assert noisy.law.pair_us == pytest.approx(0.001, rel=0.05)
    for few in (exact[:2], [each for each in exact if each.tokens == 64 and not each.prefix] * 5, []):
        with pytest.raises(ScheduleError, match="do not determine the three figures"):
            fit_chunk_law(few)
    with pytest.raises(ScheduleError, match="takes 0 us"):
        fit_chunk_law([*exact, MeasuredChunk(64, 0, 0.0)])

"""Who is taken of the whole file, on more or fewer threads, and a mix, whatever else the machine does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tvm")

from tessel.compiling import choosing, racing
from tessel.compiling.choosing import Choice, Sample, choose, sampler

WHOLE, MIX = 0, 1


def _chosen(mix_us: float, *, disturbed: float, noise: float, seed: int) -> Choice:
    """Return who is taken where disturbed rounds favour the mix by far, as load has been seen to do."""
    rng, ticks = np.random.default_rng(seed), itertools.count()

    def sample(latency_us: float, busy: float) -> Callable[[], Sample]:
        def one() -> Sample:
            taken_us = latency_us * rng.lognormal(sigma=noise)
            return Sample(taken_us * busy, 0.4) if rng.random() < disturbed else Sample(taken_us, 0.01)

        return one

    samplers = [sample(100.0, 9.0), sample(mix_us, 3.0)]
    return choose(samplers, clock=lambda: next(ticks) * 0.004, rng=np.random.default_rng(seed))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("mix_us", "disturbed", "noise", "best"),
    [
        (160.0, 0.8, 0.1, WHOLE),  # nearly all rounds say that the mix is ahead
        (90.0, 0.3, 0.02, MIX),
        (90.0, 0.0, 0.02, MIX),
        (60.0, 0.9, 0.1, MIX),  # it takes patience until enough are undisturbed
        (100.0, 0.0, 0.02, WHOLE),
        (105.0, 0.8, 0.4, WHOLE),  # nothing is sure
    ],
)
def test_a_mix_is_taken_where_undisturbed_rounds_are_sure_of_it(
    mix_us: float, disturbed: float, noise: float, best: int, seed: int
) -> None:
    assert _chosen(mix_us, disturbed=disturbed, noise=noise, seed=seed).best == best


def test_the_file_is_taken_where_no_round_is_undisturbed() -> None:
    found = _chosen(50.0, disturbed=1.0, noise=0.0, seed=0)
    assert (found.best, found.ratios) == (WHOLE, None)
    assert found.latency_us == pytest.approx(900.0)


@pytest.mark.parametrize(
    ("all_us", "fewer_us", "mix_us", "best"),
    [(100, 60, 80, 1), (100, 99.9, 101, 0), (100, 80, 79.9, 1), (100, 80, 60, 2), (60, 80, 100, 0)],
)
def test_what_is_taken_instead_of_one_before_is_surely_ahead_of_it(
    all_us: float, fewer_us: float, mix_us: float, best: int
) -> None:
    rng, ticks = np.random.default_rng(0), itertools.count()
    latencies = (all_us, fewer_us, mix_us)
    samplers = [lambda us=us: Sample(us * rng.lognormal(sigma=0.01), 0.0) for us in latencies]
    found = choose(samplers, clock=lambda: next(ticks) * 0.004, rng=rng)
    assert found.best == best
    assert found.ratios == pytest.approx([latencies[best] / us for us in latencies], rel=0.02)


def test_a_sample_of_several_threads_says_how_long_they_waited(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now_s, waited_ns = [0.0], [5_000_000_000]
    for thread in ("7", "8"):
        (tmp_path / thread).mkdir()
    (tmp_path / "9").mkdir()  # has ended

    def run() -> None:
        now_s[0] += 0.02
        waited_ns[0] += 3_000_000
        for thread in ("7", "8"):
            (tmp_path / thread / "schedstat").write_text(f"1 {waited_ns[0]} 3\n")

    clock = SimpleNamespace(
        perf_counter=lambda: now_s[0], process_time=lambda: now_s[0] / 4, sleep=lambda _: None
    )
    monkeypatch.setattr(choosing, "_THREADS", tmp_path)
    monkeypatch.setattr(choosing, "time", clock)
    monkeypatch.setattr(racing, "time", clock)
    found = sampler(run, num_threads=2)()
    assert (found.latency_us, found.waited) == (pytest.approx(20_000), pytest.approx(0.3))
    alone = sampler(run, num_threads=1)()
    assert (alone.latency_us, alone.waited) == (pytest.approx(5_000), 0.0)

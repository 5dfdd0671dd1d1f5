"""Races in one process: who takes part, what a ratio is, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

from tessel.compiling import racing  # noqa: E402
from tessel.compiling.partitioning import compile_within  # noqa: E402
from tessel.compiling.racing import median_interval, race  # noqa: E402
from tests.samples.programs.compiled_modules import perceptron  # noqa: E402 - after the skips

pytestmark = [pytest.mark.torch, pytest.mark.tvm]


def _clocks(now: Callable[[], float]) -> SimpleNamespace:
    return SimpleNamespace(perf_counter=now, process_time=now, sleep=lambda seconds: None)


def test_a_slower_contender_has_a_ratio_above_one_and_an_interval_around_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, rng = [0.0], np.random.default_rng(0)

    def taking(seconds: float) -> Callable[[], None]:
        return lambda: now_s.append(now_s[-1] + seconds * rng.uniform(1.0, 1.5))

    monkeypatch.setattr(racing, "time", _clocks(lambda: now_s[-1]))
    found = race({"quick": taking(0.002), "slow": taking(0.006)}, rounds=8)
    assert [each.name for each in found] == ["quick", "slow"]
    assert (found[0].ratio, found[0].low, found[0].high) == (1.0, 1.0, 1.0)
    assert found[1].low <= found[1].ratio <= found[1].high
    assert 1 < found[1].ratio < 6
    with pytest.raises(ValueError, match="rounds is 5; an interval needs 6"):
        race({"one": lambda: None}, rounds=5)


def test_who_ran_before_changes_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, processor_s, waiting_s = [0.0], [0.0], [0.0]
    last = [""]

    def call(name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            is_cold = last[0] not in ("quick", name)
            is_hindered = name == "quick" and waiting_s[0] > 0
            now_s[0] += seconds * (1.5 if is_cold else 1.0) * (3.0 if is_hindered else 1.0)
            last[0] = name
            waiting_s[0] = 0.04 if name == "slow" else waiting_s[0] - seconds

        return run

    def sleep(seconds: float) -> None:
        looped_s = max(0.0, min(seconds, waiting_s[0]))  # threads of the slow one, in a loop
        processor_s[0] += looped_s
        waiting_s[0] -= looped_s

    # The time of other threads is counted at ticks.
    clocks = SimpleNamespace(process_time=lambda: math.floor(processor_s[0] / 0.01) * 0.01, sleep=sleep)
    monkeypatch.setattr(racing, "time", clocks)
    runs = {"one": call("one", 0.008), "quick": call("quick", 0.008), "slow": call("slow", 0.06)}
    found = race(runs, rounds=12, clock=lambda: now_s[0])
    assert found[1].ratio == pytest.approx(1.0)


def test_threads_that_wake_after_a_rest_take_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, asleep_s, rng = [0.0], [0.0], np.random.default_rng(0)

    def call() -> None:
        took_s = 0.009 if asleep_s[0] > 0 else 0.003
        now_s[0] += took_s
        asleep_s[0] -= took_s

    def sleep(seconds: float) -> None:
        asleep_s[0] = rng.choice((0.0, 0.04))

    monkeypatch.setattr(racing, "time", SimpleNamespace(process_time=lambda: 0.0, sleep=sleep))
    (_, other) = race({"one": call, "other": call}, rounds=12, num_threads=2, clock=lambda: now_s[0])
    assert (other.low, other.ratio, other.high) == pytest.approx((1.0, 1.0, 1.0))


@pytest.mark.parametrize("number", [6, 12, 30, 101])
def test_an_interval_holds_the_median_as_often_as_it_says(number: int) -> None:
    rng = np.random.default_rng(number)
    held = 0
    for _ in range(400):
        low, high = median_interval(list(rng.exponential(size=number)))
        held += low <= np.log(2) <= high
    assert 0.92 <= held / 400 <= 1.0


def test_a_program_races_against_its_module_and_says_who_was_left_out() -> None:
    module, example = perceptron()
    program = compile_within(module, example, seconds=0, threads=1, backends=["tvm"])
    threads = torch.get_num_threads()
    found = program.benchmark(example, module=module, against=("torch eager", "onnxruntime"), rounds=6)
    ran = {each.name for each in found.contenders} | set(found.left_out)
    assert ran == {"tessel", "torch eager", "onnxruntime"}
    assert torch.get_num_threads() == threads
    assert "6 rounds in turn, 1 threads" in str(found)
    alone = program.benchmark(rounds=6, against=())
    assert [each.name for each in alone.contenders] == ["tessel"]

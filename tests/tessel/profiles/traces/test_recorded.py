"""What torchtitan's profiler and the timers of Megatron and DeepSpeed wrote in runs of theirs, as it is read.

`python -m benchmarks.frameworks.record` made the files; stopwatches of the same runs lie beside them.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from tessel.placement import BlockKind
from tessel.profiles import Profile, load_profile
from tessel.profiles.load import detect_format
from tessel.profiles.traces import load_trace
from tessel.profiles.traces.steps import read_profiler_steps

RECORDS = Path(__file__).parents[3] / "samples" / "traces"
LETTER = {BlockKind.FORWARD: "F", BlockKind.BACKWARD: "B"}


def stopwatches(name: str) -> list[dict[str, list[float]]]:
    """Milliseconds of each rank's calls, by name."""
    found: list[dict[str, list[float]]] = json.loads((RECORDS / f"{name}.json").read_text())
    return found


def figures_ms(profile: Profile) -> list[tuple[float, float]]:
    """Forward and backward of each row."""
    return [(cost.forward_us / 1e3, (cost.backward_us or 0.0) / 1e3) for cost in profile.tables[0].costs]


def test_blocks_of_torchtitans_trace_last_as_stopwatches_say() -> None:
    """FSDP copies weights, and then a stage waits for its input: neither is its forward's."""
    watches, trace = stopwatches("torchtitan_stages"), load_trace(RECORDS / "torchtitan_stages")
    taken: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for each in trace.ranges:
        block = f"{each.stage}{LETTER[each.kind]}{each.micro_batch}"
        stopped = sum(watches[each.rank][block])  # of a last stage's forward the loss, too
        taken[each.stage, block].append((each.duration_us / 1e3, stopped))
        assert each.duration_us / 1e3 <= 1.01 * stopped
    assert len(taken) == 4 * 2 * 4
    for stage, (forward, backward) in enumerate(figures_ms(load_profile(RECORDS / "torchtitan_stages"))):
        for letter, found in (("F", forward), ("B", backward)):
            own = [
                stopped for (of, block), ((_, stopped),) in taken.items() if of == stage and letter in block
            ]
            assert found == pytest.approx(statistics.median(own), rel=0.05)
    steps = read_profiler_steps(RECORDS / "torchtitan_stages")
    assert (steps.stages, steps.micro_batches, len(steps.replicas)) == (4, 4, 1)


def test_layers_of_torchtitans_trace_are_what_fsdp_wraps() -> None:
    """A model in one rank has no labels of stages; torchtitan's own names lead back to it."""
    (own,), profile = stopwatches("torchtitan_layers"), load_profile(RECORDS / "torchtitan_layers")
    (whole,) = own.pop("backward")
    assert [layer.name for layer in profile.layers] == list(own)
    figures = dict(zip(own, figures_ms(profile), strict=True))
    for name, (forward, backward) in figures.items():
        if name.startswith("layers"):
            assert forward == pytest.approx(own[name][0], rel=0.01)
            assert 1.5 * forward < backward < 4 * forward
    assert figures["lm_head"][0] > 1.5 * own["lm_head"][0]  # the norm is wrapped with it
    # The loss is in no layer, and neither is what FSDP does with gradients.
    assert 0.6 * whole < sum(backward for _, backward in figures.values()) < whole


def test_stages_of_megatrons_log_take_what_stopwatches_say() -> None:
    path = RECORDS / "megatron.log"
    assert detect_format(path, path.read_bytes()) == "log"
    for own, found in zip(stopwatches("megatron"), figures_ms(load_profile(path)), strict=True):
        for name, figure in zip(("forward_step", "backward_step"), found, strict=True):
            steps = [statistics.mean(own[name][4 * step : 4 * step + 4]) for step in (1, 2)]
            assert figure == pytest.approx(statistics.median(steps), rel=0.01)


def test_the_model_of_deepspeeds_log_takes_what_stopwatches_say() -> None:
    path = RECORDS / "deepspeed.log"
    assert detect_format(path, path.read_bytes()) == "log"
    profile = load_profile(path, micro_batch=4)
    (own,), ((forward, backward),) = stopwatches("deepspeed"), figures_ms(profile)
    inner = [each - reduced for each, reduced in zip(own["backward"], own["allreduce"], strict=True)]
    assert forward == pytest.approx(statistics.median(own["forward"][1:]), rel=0.01)
    assert backward == pytest.approx(statistics.median(inner[1:]), rel=0.01)
    update = (profile.tables[0].costs[0].update_us or 0.0) / 1e3  # of every second micro-batch, here
    assert update == pytest.approx(statistics.median(own["update"][3::2]), rel=0.05)
    assert profile.micro_batches == (4,)
    assert any("no pipeline can be cut from" in note for note in profile.notes)

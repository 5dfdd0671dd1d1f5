"""Whatever is picked among what a sketch allows is a schedule that TVM takes as it is."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tvm.s_tir import meta_schedule

from tests.oracles.language_texts import read_decisions
from tuner.backends.metaschedule.backend import tuning_target
from tuner.language.choices import LocationChoice, TileChoice
from tuner.language.kernels import kernel_module, parse_kernel
from tuner.language.sketches import KernelSpace, Proposal
from tuner.language.text import write_text
from tuner.language.vocabulary import DECISIONS, TOKENS
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

NAMES = ["dense:6x34x60,relu", "product:2x8x12x16", "convolution:4x7x6x3x1", "depthwise:6x7x3x2"]


@pytest.fixture(scope="module")
def spaces() -> dict[str, KernelSpace]:
    tuned_for = tuning_target(resolve_target("cpu", num_threads=1))
    return {name: KernelSpace(name, kernel_module(parse_kernel(name)), tuned_for) for name in NAMES}


def pick(space: KernelSpace, rng: np.random.Generator) -> Proposal:
    """Write a proposal token by token, each drawn from those that are allowed."""
    index = int(rng.integers(len(space.sketches)))
    decisions: list[Any] = []
    while choice := space.sketches[index].choice(decisions):
        written: list[str] = []
        while following := choice.next_tokens(written):
            written.append(str(rng.choice(following)))
        decisions.append(choice.read(written))
    return Proposal(index, tuple(decisions))


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_picked_is_legal(spaces: dict[str, KernelSpace], name: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(6):
        proposal = pick(spaces[name], rng)
        schedule = spaces[name].schedule(proposal)
        assert schedule is not None, proposal
        as_measured = schedule.trace
        as_evolution_keeps_it = schedule.trace.simplified(remove_postproc=True)
        for trace in (as_measured, as_evolution_keeps_it):
            assert spaces[name].read_trace(kept(schedule, trace)) == proposal


def kept(schedule: Any, trace: Any) -> str:
    """Return a trace as records keep it."""
    known = meta_schedule.database.Workload(schedule.mod)
    entry = meta_schedule.database.TuningRecord(trace, known, None, None, [])
    return json.dumps(entry.as_json()[0])


@pytest.mark.parametrize("name", NAMES)
def test_what_tvm_draws_can_be_written_and_reads_back(spaces: dict[str, KernelSpace], name: str) -> None:
    space, rng = spaces[name], np.random.default_rng(1)
    seen = set()
    for _ in range(6):
        proposal = space.sample(rng)
        sketch = space.sketches[proposal.sketch]
        choices = sketch.choices(proposal.decisions)
        text = write_text(
            space.text, sketch.text, index=proposal.sketch, choices=choices, decisions=proposal.decisions
        )
        tokens = [TOKENS[number] for number in text.ids]
        assert read_decisions(choices, tokens[tokens.index(DECISIONS) + 1 :]) == proposal.decisions
        assert len(tokens) < 512
        assert len({tokens[index] for index, decided in enumerate(text.decided) if decided}) > 1
        for position, (choice, decision) in enumerate(zip(choices, proposal.decisions, strict=True)):
            allowed = sketch.choice(proposal.decisions[:position])
            assert allowed is not None
            assert allowed == choice or isinstance(choice, LocationChoice)
            allowed.write(decision)
        seen.add(proposal)
    assert len(seen) > 1


def test_places_to_compute_at_depend_on_earlier_decisions(spaces: dict[str, KernelSpace]) -> None:
    sketch = spaces["convolution:4x7x6x3x1"].sketches[0]
    rng = np.random.default_rng(2)
    found = set()
    for _ in range(6):
        decisions = sketch.sample(int(rng.integers(1, 1000)))
        choice = sketch.choice(decisions[:-1])
        assert isinstance(choice, LocationChoice)
        found.add(choice.locations)
    assert len(found) > 1
    assert all({-2, -1} <= set(locations) for locations in found)


def test_a_repaired_decision_is_no_schedule(spaces: dict[str, KernelSpace]) -> None:
    space = spaces["dense:6x34x60,relu"]
    proposal = space.sample(np.random.default_rng(0))
    first = space.sketches[proposal.sketch].choice(())
    assert isinstance(first, TileChoice)
    repaired = ((7, *(1,) * (first.parts - 1)), *proposal.decisions[1:])
    assert space.schedule(Proposal(proposal.sketch, repaired)) is None
    assert space.read_trace("[[], []]") is None

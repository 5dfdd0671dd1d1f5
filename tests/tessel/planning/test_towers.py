"""Towers on their own devices and in bubbles, against a model for CP-SAT and sums that share no code."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from ortools.sat.python import cp_model

import tessel
from tessel.errors import DocumentError, InfeasibleError, ScheduleError, UsageError
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link, Optimizer
from tessel.planning.costs.stage_figures import stage_figures
from tessel.planning.costs.training_step import build_step
from tessel.planning.find_sharded import find_sharded
from tessel.planning.job import Job
from tessel.planning.layout import Layout, PlacedTower, TowerName
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import PlanProgress, PlanResult
from tessel.planning.saved_plan import SavedPlan, load_saved_plan
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts
from tessel.profiles.towers import tower_layers
from tessel.search import SearchBudget
from tessel.validation import find_violations
from tests.samples.plan_samples import QUIET

KIB = 1 << 10
HOP = Link(bytes_per_s=1e9, latency_us=5.0)
ROUNDING = 0.01
"""Share by which whole steps lengthen a plan of so few blocks at most."""


def model(seed: int, own: int, behind: int, *, is_frozen: bool = False) -> Profile:
    """Return a profile of a tower and a language model, each of so many layers; times are whole."""
    rng = np.random.default_rng(seed)
    costs = []
    for index in range(own + behind):
        forward, backward = int(rng.integers(50, 200)), int(rng.integers(100, 400))
        is_quiet = is_frozen and index < own - 1
        costs.append(
            StageCosts(
                forward_us=forward,
                backward_us=0 if is_quiet else backward,
                weight_bytes=int(rng.integers(10, 90)) * KIB,
                trained_bytes=0 if is_quiet else None,
                saved_bytes=0 if is_quiet else int(rng.integers(10, 90)) * KIB,
                peak_bytes=int(rng.integers(0, 9)) * KIB,
                boundary_bytes=int(rng.integers(1, 5)) * 10_000,
            )
        )
    names = [*(f"vision.{index}" for index in range(own)), *(f"layer{index}" for index in range(behind))]
    return Profile(
        name="seeing",
        layers=tuple(map(Layer, names)),
        tables=(CostTable(micro_batch=1, tensor_parallel=1, costs=tuple(costs)),),
    )


def job(
    *,
    devices: int = 2,
    samples: int = 3,
    memory: int | None = None,
    optimizer: Optimizer = QUIET,
    **more: Any,
) -> Job:
    cluster = Cluster(devices=devices, hop=HOP, collective=HOP, memory_bytes=memory)
    return Job(cluster=cluster, global_batch=samples, optimizer=optimizer, **more)


def plan(profile: Profile, asked: Job, *towers: TowerName, work: float = 1.0, **options: Any) -> PlanResult:
    options = {"what_if": False, "recompute": False, "pipeline": asked.cluster.devices} | options
    return find_sharded(
        profile, [asked], towers=towers, options=PlanOptions(**options), budget=SearchBudget(work_limit=work)
    )


def least_us(
    costs: Sequence[StageCosts],
    own: int,
    cut: Sequence[int],
    micro_batches: int,
    rooms: Sequence[float] | None = None,
) -> float:
    """Return the least makespan of one cut, one stage a device, by CP-SAT; infinite where nothing fits.

    Args:
        costs: of all layers, in whole microseconds.
        own: layers of the tower that any device runs; 0 for none.
        cut: the first layer of each stage, and the number of layers.
        micro_batches: how many are run.
        rooms: bytes of each device beside what it holds throughout.
    """
    if rooms is not None and min(rooms) < 0:
        return math.inf
    program, devices = cp_model.CpModel(), range(len(cut) - 1)
    horizon = int(micro_batches * sum(cost.forward_us + (cost.backward_us or 0) + 100 for cost in costs))
    end = program.new_int_var(0, horizon, "end")
    busy: list[list[cp_model.IntervalVar]] = [[] for _ in devices]
    changes: list[list[tuple[Any, int, Any]]] = [[] for _ in devices]

    def hop(layer: int, one: int, other: int) -> int:
        return 0 if one == other else round(5 + costs[layer].boundary_bytes / 1e3)

    def block(device: int, span: float, units: int, is_run: Any = 1) -> Any:
        start = program.new_int_var(0, horizon, "")
        row = program.new_optional_interval_var(start, int(span), start + int(span), is_run, "")
        busy[device].append(row)
        changes[device].append((start, units, is_run))
        program.add(start + int(span) <= end).only_enforce_if(is_run)
        return start

    for _ in range(micro_batches):
        forwards, backwards, spans = [], [], []
        for device, (first, after) in enumerate(itertools.pairwise(cut)):
            here = costs[first:after]
            spans.append((sum(c.forward_us for c in here), sum(c.backward_us or 0 for c in here)))
            kept = sum(cost.saved_bytes for cost in here)
            forwards.append(block(device, spans[-1][0], kept))
            backwards.append(block(device, spans[-1][1], -kept))
            program.add(backwards[-1] >= forwards[-1] + int(spans[-1][0]))
        for one, other in itertools.pairwise(devices):
            lag = hop(cut[other] - 1, one, other)
            program.add(forwards[other] >= forwards[one] + int(spans[one][0]) + lag)
            program.add(backwards[one] >= backwards[other] + int(spans[other][1]) + lag)
        if own:
            here = costs[:own]
            ahead, back = sum(c.forward_us for c in here), sum(c.backward_us or 0 for c in here)
            kept = sum(cost.saved_bytes for cost in here) + here[-1].boundary_bytes
            chosen = [program.new_bool_var("") for _ in devices]
            program.add_exactly_one(chosen)
            for device, is_run in enumerate(chosen):
                lag = hop(own - 1, device, 0)
                there, again = block(device, ahead, kept, is_run), block(device, back, -kept, is_run)
                program.add(forwards[0] >= there + int(ahead) + lag).only_enforce_if(is_run)
                program.add(again >= backwards[0] + int(spans[0][1]) + lag).only_enforce_if(is_run)
    for device in devices:
        program.add_no_overlap(busy[device])
        if rooms is not None:
            times, units, runs = zip(*changes[device], strict=True)
            program.add_reservoir_constraint_with_active(times, units, runs, 0, int(rooms[device]))
    program.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(program)
    assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return solver.objective_value if status == cp_model.OPTIMAL else math.inf


def every_cut(own: int, num_layers: int, stages: int) -> list[tuple[int, ...]]:
    inner = itertools.combinations(range(own + 1, num_layers), stages - 1)
    return [(own, *each, num_layers) for each in inner]


def check(profile: Profile, asked: Job, *, work: float = 0.2) -> None:
    """Compare a plan with the least step over all cuts: it is as short, or its gap says it may not be."""
    own, costs = tower_layers(profile), profile.tables[0].costs
    limit = asked.cluster.memory_bytes

    def room(cut: Sequence[int]) -> list[float] | None:
        if limit is None:
            return None
        held = []
        for first, after in itertools.pairwise(cut):
            here = (*costs[:own], *costs[first:after])
            static = sum(cost.weight_bytes + 3 * cost.updated_bytes for cost in here)
            held.append(static + max(cost.peak_bytes for cost in here))
        return [limit - each for each in held]

    every = every_cut(own, len(costs), asked.cluster.devices)
    least = min(least_us(costs, own, cut, asked.global_batch, room(cut)) for cut in every)
    if math.isinf(least):
        with pytest.raises(InfeasibleError):
            plan(profile, asked, "bubbles", work=work, placements=("vshape",), baselines=False)
        return
    found = plan(profile, asked, "bubbles", work=work, placements=("vshape",), baselines=False)
    step_us = found.best.estimate.step_us
    assert found.best.schedule is not None
    assert not find_violations(found.best.schedule)
    assert found.lower_bound_us <= least * (1 + 1e-9)
    assert least * (1 - 1e-9) <= step_us <= least * (1 + found.gap + ROUNDING)
    assert step_us <= least * 1.05


def test_a_small_plan_in_bubbles_is_as_short_as_any() -> None:
    check(model(1, 1, 3), job(samples=2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "memory"), [(0, None), (1, None), (3, None), *((seed, 1100 * KIB) for seed in range(6))]
)
def test_plans_in_bubbles_are_as_short_as_any(seed: int, memory: int | None) -> None:
    check(model(seed, 2, 3, is_frozen=bool(seed % 2)), job(samples=3, memory=memory), work=1.0)


@pytest.mark.parametrize("seed", range(4))
def test_a_tower_on_devices_of_its_own_is_as_short_as_any(seed: int) -> None:
    profile, asked = model(seed, 2, 3), job(devices=3, samples=3)
    costs = profile.tables[0].costs
    found = plan(profile, asked, "own")
    every = [cut for cut in every_cut(0, len(costs), 3) if 2 in cut]
    least = min(least_us(costs, 0, cut, 3) for cut in every)
    assert any(first == 2 for first, _ in found.best.layout.cuts)
    assert found.lower_bound_us <= least * (1 + ROUNDING)  # whole steps, where every cut was looked at
    assert least * (1 - 1e-9) <= found.best.estimate.step_us <= least * (1 + ROUNDING)


def layout(*, recompute: bool = False) -> Layout:
    """Two replicas of three devices; the tower is the first two of six layers."""
    return Layout(
        data_parallel=2,
        pipeline=3,
        micro_batch=1,
        micro_batches=4,
        cuts=((2, 3), (4, 4), (5, 5)),
        tower=PlacedTower(where="bubbles", layers=2, recompute=recompute),
    )


def test_copies_and_their_collectives_are_those_of_sums_by_hand() -> None:
    profile, adam = model(5, 2, 4), OPTIMIZERS["adam-mixed"]
    asked = job(devices=6, optimizer=adam, sharding="optimizer")
    own = profile.tables[0].costs[:2]
    with_tower = stage_figures(profile, layout(), asked)
    behind = msgspec.structs.replace(layout(), tower=msgspec.UNSET)
    without = stage_figures(profile, behind, asked)
    weights = sum(cost.weight_bytes for cost in own)
    copy = weights * (adam.weight_ratio + adam.gradient_ratio + adam.state_ratio / 6)
    for device, (held, alone) in enumerate(zip(with_tower.static_bytes, without.static_bytes, strict=True)):
        first, last = layout().cuts[device]
        peak = max(cost.peak_bytes for cost in profile.tables[0].costs[first : last + 1])
        more = max(0, max(cost.peak_bytes for cost in own) - peak)
        assert held - alone == pytest.approx(copy + more, abs=3)
    # Six copies of gradients are summed in parts of a sixth, and weights gathered likewise.
    part_us = 5 * (5.0 + weights * adam.gradient_ratio / 6 / 1e3)
    (tower,) = (each for each in with_tower.synchronisations if each not in without.synchronisations)
    assert (tower.stages, tower.us) == ((3, 4, 5), pytest.approx(part_us))
    gathered_us = 5 * (5.0 + weights * adam.exchanged_ratio / 6 / 1e3)
    moved = weights * (2 + adam.gradient_ratio + 2 * adam.state_ratio) / 6 / 1e12 * 1e6
    assert np.subtract(with_tower.gather_us, without.gather_us) == pytest.approx(gathered_us)
    assert np.subtract(with_tower.update_us, without.update_us) == pytest.approx(moved)


@pytest.mark.parametrize("recompute", [False, True])
def test_blocks_of_a_tower_take_and_keep_what_its_layers_do(recompute: bool) -> None:
    profile = model(5, 2, 4)
    one, other = profile.tables[0].costs[:2]
    step = build_step(profile, layout(recompute=recompute), job(devices=6))
    placement = step.placement
    kept = one.boundary_bytes if recompute else one.saved_bytes + other.saved_bytes
    kept = min(kept, other.saved_bytes) if recompute else kept
    back = (one.backward_us or 0) + (other.backward_us or 0)
    back += one.forward_us + other.forward_us if recompute else 0
    for device in range(3):
        ahead, behind = placement.block(f"tower_{device}"), placement.block(f"tower_back_{device}")
        assert ahead.devices == behind.devices == (device,)
        assert ahead.span * step.step_us == pytest.approx(one.forward_us + other.forward_us, rel=0.01)
        assert behind.span * step.step_us == pytest.approx(back, rel=0.01)
        assert ahead.memory == -behind.memory == kept + other.boundary_bytes
    lags = {(edge.source, edge.target): edge.lag * step.step_us for edge in placement.edges}
    hop_us = 5 + other.boundary_bytes / 1e3
    assert lags["tower_0", "f0"] == lags["b0", "tower_back_0"] == 0
    assert lags["tower_2", "f0"] == lags["b0", "tower_back_2"] == pytest.approx(hop_us, rel=0.1)


@cache
def compared() -> PlanResult:
    """Return a plan of three devices, the tower anywhere."""
    asked = job(devices=3, samples=6, optimizer=OPTIMIZERS["adam-mixed"], sharding="optimizer")
    return plan(model(4, 2, 6), asked, "first", "own", "bubbles", placements=("vshape",), work=0.3)


def saved(towers: Sequence[TowerName] = ("bubbles",)) -> SavedPlan:
    asked = job(devices=3, samples=6, optimizer=OPTIMIZERS["adam-mixed"], sharding="optimizer")
    profile = model(4, 2, 6)
    return SavedPlan.of(plan(profile, asked, *towers, placements=("vshape",), work=0.3), profile, asked)


def test_the_best_place_is_taken_and_the_others_are_rows_beside_it() -> None:
    found = compared()
    rows = {row.name: row.planned for row in found.baselines if row.name.startswith("tower ")}
    assert found.best.layout.bubbles is not None
    assert set(rows) == {"tower first", "tower own"}
    assert rows["tower own"] is not None
    assert 2 in [first for first, _ in rows["tower own"].layout.cuts]
    others = [row.estimate.step_us for row in rows.values() if row is not None]
    assert found.best.estimate.step_us < min(others)
    assert "1f1b" in {row.name for row in found.baselines}
    assert sum("tower in bubbles" in line for line in found.explanation) <= 1
    assert any("tower first" in line for line in found.explanation)


def test_a_bound_holds_for_every_place_and_not_for_the_best_alone() -> None:
    of_one = model(1, 1, 3), job(samples=1)
    first, bubbles, every = (
        plan(*of_one, *towers, placements=("vshape",), work=0.05)
        for towers in (("first",), ("bubbles",), ("first", "bubbles"))
    )
    assert every.best.layout == first.best.layout
    assert every.best.estimate.step_us == first.best.estimate.step_us == first.lower_bound_us
    assert every.lower_bound_us == bubbles.lower_bound_us < first.lower_bound_us


def test_an_answer_before_all_places_were_searched_has_a_bound_for_the_others() -> None:
    profile, asked = model(1, 1, 3), job(samples=1)
    budget = SearchBudget(work_limit=0.2)
    early: list[PlanResult] = []

    def tell(progress: PlanProgress) -> None:
        assert budget.answer is not None
        answer = budget.answer()
        if "bubbles" in progress.name and isinstance(answer, PlanResult):
            early.append(answer)

    options = PlanOptions(what_if=False, recompute=False, pipeline=2, placements=("vshape",))
    late = find_sharded(
        profile, [asked], towers=("first", "bubbles"), options=options, budget=budget, on_progress=tell
    )
    costs = profile.tables[0].costs
    assert early
    assert early[0].lower_bound_us == sum(cost.forward_us + (cost.backward_us or 0) for cost in costs) / 2
    assert early[0].lower_bound_us <= late.lower_bound_us


def test_a_plan_is_saved_and_what_it_says_of_its_tower_is_computed_again(tmp_path: Path) -> None:
    own, file = saved(), tmp_path / "plan.json"
    file.write_bytes(own.to_json())
    assert load_saved_plan(file) == own
    runs = Counter(start.block for start in own.schedule.starts if start.block.startswith("tower"))
    assert sum(count for name, count in runs.items() if "back" not in name) == 6
    assert all(runs[f"tower_{copy}"] == runs[f"tower_back_{copy}"] for copy in range(3))

    def refused(said: str, **parts: Any) -> None:
        file.write_bytes(msgspec.structs.replace(own, **parts).to_json())
        with pytest.raises(DocumentError, match=said):
            load_saved_plan(file)

    tower = msgspec.structs.replace(own.layout.tower, recompute=True)  # type: ignore[type-var]  # it has one
    refused("of the tower in bubbles is", layout=msgspec.structs.replace(own.layout, tower=tower))
    placement = own.schedule.placement
    light = tuple(
        msgspec.structs.replace(block, memory=0) if block.name in ("tower_1", "tower_back_1") else block
        for block in placement.blocks
    )
    peaks = tuple(0 for _ in own.schedule.peak_memory)
    lighter = msgspec.structs.replace(
        own.schedule, placement=msgspec.structs.replace(placement, blocks=light), peak_memory=peaks
    )
    refused("peak_memory", schedule=lighter)
    shorter = tuple(each + 1 for each in own.static_bytes)
    refused("static_bytes|memory_bytes", static_bytes=shorter)


def test_a_plan_in_bubbles_is_explained_and_drawn_and_exported_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(saved().to_json())
    found = tessel.load_plan(file)
    text = str(found.explain())
    assert "tower in bubbles" in text
    assert any(line.split()[:2] == ["tower", "0-2"] for line in text.splitlines())
    assert found.draw(tmp_path / "plan.txt").stat().st_size
    for framework in ("torch", "megatron", "torchtitan", "deepspeed", "primus"):
        with pytest.raises(ScheduleError, match=r"an export has each block .* the tower in bubbles"):
            found.export(framework)
    with pytest.raises(ScheduleError, match=r"a real run has each block .* the tower in bubbles"):
        found.run()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sharding": "parameters"}, "divides parameters, which are exchanged in every micro-batch"),
        ({"overlap_factor": 0.6}, "blocks that run together"),
    ],
)
def test_a_job_that_cannot_have_bubbles_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        plan(model(1, 1, 3), job(**options), "bubbles", work=0.1)


@pytest.mark.parametrize(
    ("names", "own"),
    [("audio_tower.0 audio_tower.1 embed h.0", 2), ("embed vision.0 h.0", 0), ("image.0 image.1", 0)],
)
def test_a_tower_is_known_by_the_names_of_its_rows(names: str, own: int) -> None:
    layers = tuple(map(Layer, names.split()))
    table = CostTable(micro_batch=1, tensor_parallel=1, costs=(StageCosts(forward_us=1),) * len(layers))
    assert tower_layers(Profile(name="named", layers=layers, tables=(table,))) == own


def test_a_model_without_a_tower_has_none_to_place() -> None:
    profile = model(1, 0, 4)
    with pytest.raises(UsageError, match=r"--tower own: no first layers of .* are a tower's"):
        tessel.plan(profile, devices=2, micro_batches=2, tower="own", progress=False)

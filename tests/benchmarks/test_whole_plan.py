"""The benchmark of whole plans: its cases, its tables, and what it says of a plan that loses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

pytest.importorskip("tvm")

from benchmarks.whole_plan import __main__ as whole_plan
from benchmarks.whole_plan.__main__ import main
from benchmarks.whole_plan.cases import LINK, SHARES, Row
from benchmarks.whole_plan.confirm import (
    BEST_OTHER,
    PLAN,
    V_1F1B,
    Confirmed,
    choose_pace,
    confirmation,
    find_ways,
    over_every_device,
    replay,
)
from benchmarks.whole_plan.published import published_models
from benchmarks.whole_plan.report import goals, longer_with_more_memory, means
from tessel.planning.cluster import Link
from tessel.profiles.profile import Branches
from tessel.search import SearchBudget
from tessel.tuned_model.layout_choice import LayoutRequest, choose_layout, profile_of_layers
from tests.samples.measured_layers import heavy_head
from tuner.plan import LayersPlan, StagePlan

pytestmark = pytest.mark.tvm


def light_weights() -> LayersPlan:
    """Return made-up layers; `tensor_parallel` is what lets a way take other degrees."""
    layers = heavy_head(table_mib=40, block_mib=4)
    return msgspec.structs.replace(layers, tensor_parallel={2: layers.layers})


def test_published_sizes_are_predicted_from_the_measured_profile_and_planned(tmp_path: Path) -> None:
    assert main(["published", "--folder", str(tmp_path), "--link", "100GB/s"]) == 0
    found = {
        path.stem: msgspec.json.decode(path.read_bytes(), type=LayersPlan) for path in tmp_path.glob("*.json")
    }
    words = [f"gpt3-6.7b-words_{count}" for count in ("50k", "256k", "1m")]
    assert sorted(found) == sorted([*words, "mt5-xl", "mt5-xxl", "flava"])
    billions = {name: sum(layer.weight_bytes for layer in each.layers) / 4e9 for name, each in found.items()}
    # As published, where a tied table is counted once: 6.7 (0.2 of it words), 3.7 and 13.
    assert billions[words[0]] - 0.2 == pytest.approx(6.7, rel=0.05)
    assert billions["mt5-xl"] - 0.5 == pytest.approx(3.7, rel=0.05)
    assert billions["mt5-xxl"] - 1.0 == pytest.approx(13, rel=0.05)
    for layers in found.values():
        sources = {stage.forward.source for stage in (*layers.layers, *layers.tensor_parallel[8])}
        assert sources == {"predicted"}
    million = found[words[2]]
    block, head = million.layers[1], million.layers[-1]
    assert head.forward.latency_us > 3 * block.forward.latency_us
    assert million.shards[8][1].forward.latency_us < head.forward.latency_us / 7
    request = LayoutRequest(devices=8, micro_batches=16, link=LINK)
    chosen = choose_layout(million, request, budget=SearchBudget(work_limit=0.1))
    steps = {row.name: row.step_ms for row in chosen.rows if row.step_ms is not None}
    assert steps["plan"] <= min(steps.values())
    assert steps["plan"] < steps["gpipe"]


def flava(*, training: bool = True) -> LayersPlan:
    """Return the predicted layers of FLAVA."""
    models = published_models(Link(bytes_per_s=1e11, latency_us=5.0), training=training)
    return next(layers for layers in models if layers.model.startswith("flava"))


@pytest.mark.parametrize("training", [True, False])
def test_the_towers_of_a_flava_are_branches_that_meet(training: bool) -> None:
    layers = flava(training=training)
    profile = profile_of_layers(layers)
    assert profile.is_training == training
    assert profile.branches == Branches(second=12, joined=25)
    names = [layer.name for layer in profile.layers]
    assert names[11:13] == ["image.block11", "text.embedding"]
    assert names[24:26] == ["text.block11", "both.block0"]
    image, text = 4 * 32 * 197 * 768, 4 * 32 * 77 * 768
    for table in profile.tables:
        sizes = [(cost.boundary_bytes, cost.relayed_bytes) for cost in table.costs]
        assert sizes[:25] == [(image, 0)] * 12 + [(image + text, image)] * 13
        assert all(relayed == 0 for _, relayed in sizes[25:])


def reading_the_other_tower(layers: LayersPlan) -> LayersPlan:
    """Return FLAVA with a text tower whose embedding also reads what the image tower makes."""

    def crossed(stages: tuple[StagePlan, ...]) -> tuple[StagePlan, ...]:
        text = msgspec.structs.replace(stages[12], inputs=stages[11].outputs)
        return (*stages[:12], text, *stages[13:])

    divided = {count: crossed(stages) for count, stages in layers.tensor_parallel.items()}
    return msgspec.structs.replace(layers, layers=crossed(layers.layers), tensor_parallel=divided)


@pytest.mark.parametrize("training", [True, False])
def test_towers_run_side_by_side_unless_one_reads_the_other(training: bool) -> None:
    """One micro-batch waits for the longer tower alone; of many, all-reduces of the joint cost more."""
    layers = flava(training=training)
    chain = reading_the_other_tower(layers)
    assert profile_of_layers(chain).branches is None
    assert all(cost.relayed_bytes == 0 for cost in profile_of_layers(chain).tables[0].costs)
    link = Link(bytes_per_s=1e11, latency_us=5.0)
    found = {}
    for name, plan, micro_batches in (("one", layers, 1), ("many", layers, 8), ("chain", chain, 1)):
        request = LayoutRequest(devices=8, micro_batches=micro_batches, link=link)
        found[name] = choose_layout(plan, request, budget=SearchBudget(work_limit=0.2))
        steps = {row.name: row.step_ms for row in found[name].rows if row.step_ms is not None}
        assert steps["plan"] <= min(steps.values())
        assert {"1f1b", "tensor-parallel"} <= steps.keys()
        assert ("kshape-1f1b" in steps) == (training and name != "chain")
    assert [each.layout.placement == "kshape" for each in found.values()] == [True, False, False]
    assert found["one"].step_us < 0.95 * found["chain"].step_us
    # The chain's own rows are of the same figures, with branches or without.
    one, same = (
        {row.name: row.step_ms for row in found[name].rows if row.name in ("tensor-parallel", "torch-auto")}
        for name in ("one", "chain")
    )
    assert one == same


@pytest.mark.slow  # twelve cases are planned
def test_cases_are_planned_and_none_is_slower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layers, kept, report = tmp_path / "layers.json", tmp_path / "rows.jsonl", tmp_path / "report.md"
    layers.write_bytes(msgspec.json.encode(light_weights()))
    command = ["plan", str(layers), "--devices", "4", "--work", "0.05", "--out", str(kept)]
    assert main([*command, "--report", str(report)]) == 0
    rows = [msgspec.json.decode(line, type=Row) for line in kept.read_bytes().splitlines()]
    assert [(row.micro_batches, row.share) for row in rows] == [
        (count, share) for count in (4, 8, 16) for share in SHARES
    ]
    ways = {"1f1b", "gpipe", "zb-h1", "zb-v", "interleaved-2", "chimera", "mshape-1f1b", "data-parallel"}
    for row in rows:
        assert ways <= {*row.alone, *row.does_not_fit}
        assert "tensor-parallel" in {*row.alone, *row.does_not_fit}
        assert row.step_ms >= row.bound_ms > 0
    # The limit is what 1F1B on the plain chain holds, so that it fits there in every case.
    assert all(row.alone["1f1b"] >= 1 for row in rows if row.share == max(SHARES))
    assert any(row.ratios["1f1b"] < row.alone["1f1b"] for row in rows)
    assert "| made | 4 |" in capsys.readouterr().out
    assert "| GPT-2 small, 4 devices" in report.read_text()
    before = kept.read_bytes()
    assert main(command) == 0
    assert kept.read_bytes() == before  # a second run plans nothing again


def test_a_plan_that_loses_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losing = Row(
        model="gpt2",
        devices=4,
        share=SHARES[0],
        micro_batches=16,
        memory_bytes=2**30,
        plan="a",
        step_ms=2.0,
        bound_ms=1.6,
        alone={"1f1b": 0.9, "zb-v": 1.2},
        ratios={"1f1b": 0.8},
    )
    monkeypatch.setattr(whole_plan, "plan_cases", lambda *_, **__: iter([losing]))
    layers = tmp_path / "layers.json"
    layers.write_bytes(msgspec.json.encode(heavy_head()))
    assert main(["plan", str(layers)]) == 1
    assert "| gpt2 | 4 | 0.900 (1) | 0.900 (1) | - | - | - | 25.0% | 25.0% |" in list(means([losing]))
    wanted, *_ = (line for line in goals([losing]) if line.startswith("| GPT-2 small"))
    assert wanted.endswith("| 1.220 | 0.900 (1) | **no** | 1.125 (1) |")


def test_a_step_that_more_memory_makes_longer_is_counted() -> None:
    tight = Row(
        model="made", devices=4, share=0.6, micro_batches=8, memory_bytes=2**29, plan="a", step_ms=2.0
    )
    loose, other = (
        msgspec.structs.replace(tight, share=1.02, memory_bytes=2**30, step_ms=2.1, **change)
        for change in ({}, {"micro_batches": 16})
    )
    assert longer_with_more_memory([tight, loose, other]) == (1, 1)
    assert longer_with_more_memory([tight, msgspec.structs.replace(loose, step_ms=2.0)]) == (1, 0)
    assert longer_with_more_memory([msgspec.structs.replace(tight, plan=""), loose]) == (0, 0)


def test_ranks_that_name_another_winner_are_said() -> None:
    """The faster of two ways loses on ranks; of the other two, simulated steps differ too little to ask."""
    case = Confirmed(
        model="made",
        devices=2,
        micro_batches=4,
        pace=2.0,
        names={PLAN: "m", V_1F1B: "chain", BEST_OTHER: "tensors"},
        simulated_ms={PLAN: 100.0, V_1F1B: 120.0, BEST_OTHER: 104.0},
        real_ms={PLAN: (104.0, 106.0), V_1F1B: (121.0, 125.0), BEST_OTHER: (100.0, 101.0)},
        load=(0.5, 1.0),
    )
    assert not case.is_contradicted
    assert [agrees for *_, agrees in case.verdicts.values()] == [True, None]
    slower = msgspec.structs.replace(case, real_ms={**case.real_ms, V_1F1B: (99.0, 101.0)})
    assert slower.is_contradicted
    header = {"date": "2026-11", "command": "c", "commit": "0", "machine": "m"}
    text = "\n".join(confirmation([case, slower], header=header))
    assert "differ by more than 5% in 2 comparisons; real ranks name\nthe same winner in 1 of them" in text
    assert "| 105.0 | 1.9% | 1.200 | 0.952 | **no** |" in text


@pytest.mark.torch
@pytest.mark.slow  # two ranks start
def test_ranks_replay_a_plan_and_what_it_is_compared_with() -> None:
    """Sleeping ranks take as long as a step was planned to, also where each device of it is two."""
    ways = find_ways(light_weights(), 2, 4, work=0.05)
    assert [way.role for way in ways] == [PLAN, V_1F1B, BEST_OTHER]
    wide = over_every_device(ways[1].schedule, 2)
    assert wide.placement.devices == 2 * ways[1].schedule.placement.devices
    assert wide.makespan == ways[1].schedule.makespan
    assert all(len(block.devices) == 2 for block in wide.placement.blocks)
    pace = 0.3 * choose_pace(ways)
    real, refused = replay(ways[:1], pace=pace, rounds=1, repeats=1)
    assert not refused
    assert real[PLAN][0] > 0.95 * ways[0].simulated_ms


@pytest.mark.slow  # two plans of four units of work each, some 40 s
def test_layouts_that_more_memory_lets_in_do_not_take_the_work_of_the_best() -> None:
    """With 588 MiB the plan was 3 % longer than with 346: its order had a tenth of the work."""
    folder = Path(whole_plan.__file__).parents[1] / "data" / "layers"
    layers = msgspec.json.decode((folder / "words_256k.json").read_bytes(), type=LayersPlan)
    tight, loose = (
        choose_layout(
            layers,
            LayoutRequest(devices=8, micro_batches=32, link=LINK, memory_limit_bytes=limit << 20),
            budget=SearchBudget(work_limit=4.0),
        )
        for limit in (346, 588)
    )
    tight_ms, loose_ms = (
        next(row.step_ms or 0.0 for row in each.rows if row.name == "plan") for each in (tight, loose)
    )
    assert 0 < loose_ms <= tight_ms

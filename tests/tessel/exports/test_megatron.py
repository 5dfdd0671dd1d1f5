"""Layouts are what Megatron's own parser gives, written ones come back, and its orders are its schedule's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.engine.actions import ActionKind, schedule_of_actions
from tessel.errors import ScheduleError
from tessel.exports.megatron import (
    MegatronLayout,
    group_sizes,
    layout_of_names,
    layout_text,
    megatron_orders,
    read_layout,
    why_not_group_size,
)
from tessel.handwritten.interleaved_1f1b import INTERLEAVED_1F1B
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.shapes import interleaved, vshape

PARSED = json.loads((Path(__file__).parent / "megatron_layouts.json").read_text())

stages_of_layouts = st.lists(st.sampled_from(["", "t", "tt", "ttt", "tttttt"]), max_size=30).flatmap(
    lambda inner: st.sampled_from(["L", "tL", "mL", "mmL", "tttttL"]).map(
        lambda last: (f"E{inner[0] if inner else ''}", *inner[1:], last)
    )
)


@pytest.mark.parametrize("case", PARSED["layouts"], ids=lambda case: f"{case['layout']}-{case['ranks']}")
def test_layouts_are_read_as_megatron_reads_them(case: dict[str, object]) -> None:
    text, ranks = str(case["layout"]), int(str(case["ranks"]))
    if case["stages"] is None:
        with pytest.raises(ScheduleError):
            read_layout(text, ranks)
    else:
        assert list(read_layout(text, ranks).stages) == case["stages"]


@settings(max_examples=100, deadline=None)
@given(stages_of_layouts)
def test_what_is_written_is_read_as_the_same(stages: tuple[str, ...]) -> None:
    layout = MegatronLayout(stages, 1)
    text = str(layout)
    assert read_layout(text, 1) == layout
    assert len(text) <= len("|".join(stages))


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="EtmL|()*0123456789, x", max_size=30), st.integers(1, 4))
def test_any_text_is_read_or_refused(text: str, ranks: int) -> None:
    try:
        layout = read_layout(text, ranks)
    except ScheduleError:
        pass
    else:
        assert read_layout(str(layout), ranks) == layout


def test_recipes_are_what_they_say() -> None:
    kimi = read_layout("Et|(tt|)*30L", 16)
    assert (kimi.virtual, kimi.num_decoder_layers, len(kimi.stages)) == (2, 61, 32)
    assert [kimi.rank_of(stage) for stage in range(32)] == [*range(16), *range(16)]
    assert (kimi.stages[0], kimi.stages[1], kimi.stages[-1]) == ("Et", "tt", "L")
    llama = read_layout("Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", 8)
    assert (llama.virtual, llama.num_decoder_layers) == (5, 80)
    assert layout_text(llama.stages) == "Ett|(tt|)*34ttt|(tt|)*3tL"


def test_lists_of_layers_are_read_too() -> None:
    layout = layout_of_names([["embedding", "decoder"], ["t", "t", "loss"]], 2)
    assert layout.stages == ("Et", "ttL")
    with pytest.raises(ScheduleError, match="'encoder'"):
        layout_of_names([["embedding", "encoder"], ["loss"]], 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Et|tLt", "end with L"),
        ("t|EtL", "begin with E"),
        ("EtL|EtL", "E 2 times"),
        ("Et|t", "L 0 times"),
        ("Et|m|L|", "last chunk only"),
        ("Em|t|t|tL", "t behind an m"),
        ("Et|t|m|mL", "all of them in one stage"),
        ("Et|x|L", "'x|L' at character 4"),
        ("Et|((t|)*2)*3L", "parentheses inside"),
        ("Et|(t|)L", "number of repetitions"),
        ("Et|(t|L", "never closes"),
        ("Et)|L", "never opened"),
        ("*2EtL", "repeats nothing"),
        ("Et*2*3L", "repeats nothing"),
        ("E(t|)*999999999L", "more than 65536"),
        ("Et*999999999L", "more than 65536"),
        ("E" + "t" * 100 + "t*131000L", "more than 65536"),
        ("Et|t|tL", "do not spread evenly"),
        ("E" + "t" * (1 << 20) + "L", "characters"),
    ],
)
def test_bad_layouts_are_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        read_layout(text, 2)
    assert message in str(error.value)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 3), (2, 4), (4, 2), (4, 9)])
def test_one_chunk_a_rank_is_1f1b(ranks: int, micro_batches: int) -> None:
    layout = MegatronLayout(("Et", *["t"] * (ranks - 2), "tL") if ranks > 1 else ("EtL",), ranks)
    ours = ONE_F_ONE_B.build(vshape(ranks), micro_batches=micro_batches)
    found = schedule_of_actions(vshape(ranks), megatron_orders(layout, micro_batches))
    assert found.starts == ours.starts


@pytest.mark.parametrize(("ranks", "chunks", "rounds"), [(2, 2, 1), (2, 3, 3), (4, 2, 2)])
def test_groups_of_the_pipeline_s_size_are_interleaved_1f1b(ranks: int, chunks: int, rounds: int) -> None:
    layout = MegatronLayout(("E", *["t"] * (ranks * chunks - 2), "L"), ranks)
    placement = interleaved(ranks, chunks=chunks)
    ours = INTERLEAVED_1F1B.build(placement, micro_batches=ranks * rounds)
    found = schedule_of_actions(placement, megatron_orders(layout, ranks * rounds))
    assert found.starts == ours.starts


@pytest.mark.parametrize(
    ("micro_batches", "group", "numbers"),
    [(4, 2, "0 1 0 1 2 3 2 3"), (5, 3, "0 1 2 0 1 2 3 4 3 4")],
)
def test_groups_are_those_of_megatron_s_examples(micro_batches: int, group: int, numbers: str) -> None:
    layout = MegatronLayout(("Et", "t", "t", "tL"), 2)
    for own in megatron_orders(layout, micro_batches, group_size=group):
        forwards = [action.micro_batch for action in own if action.kind is ActionKind.FORWARD]
        assert " ".join(map(str, forwards)) == numbers


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4), st.integers(2, 3), st.integers(1, 12), st.data())
def test_every_group_size_that_megatron_takes_ends(
    ranks: int, chunks: int, micro_batches: int, data: st.DataObject
) -> None:
    layout = MegatronLayout(("E", *["t"] * (ranks * chunks - 2), "L"), ranks)
    sizes = group_sizes(ranks, micro_batches)
    assert all(why_not_group_size(size, ranks, micro_batches) is None for size in sizes)
    if sizes:
        size = data.draw(st.sampled_from(sizes))
        schedule_of_actions(
            interleaved(ranks, chunks=chunks), megatron_orders(layout, micro_batches, group_size=size)
        )


@pytest.mark.parametrize(
    ("size", "message"), [(1, "within 2..8"), (9, "within 2..8"), (7, "last group of 1")]
)
def test_group_sizes_that_megatron_refuses_are_refused(size: int, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        megatron_orders(MegatronLayout(("Et", "t", "t", "tL"), 2), 8, group_size=size)

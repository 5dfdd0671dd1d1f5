"""The plain table: what it means, and how it is refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.errors import DocumentError, ScheduleError
from tessel.profiles import CostTable, Layer, Profile, StageCosts, load_profile, save_table
from tessel.profiles.profile import Degrees

HEADER = (
    "layer,forward_ms,backward_ms,backward_input_ms,backward_weight_ms,weights_mib,saved_mib,boundary_mib"
)
TABLE = f"""{HEADER}
embed,0.3,1.1,,1.1,600,20,16
block,1.5,3.1,1.6,1.6,300,200,16
head,3,6,,,600,100,0
"""


def load(tmp_path: Path, text: str, name: str = "table.csv") -> Profile:
    (tmp_path / name).write_text(text)
    return load_profile(tmp_path / name)


def refusal(tmp_path: Path, text: str, name: str = "table.csv") -> str:
    with pytest.raises(DocumentError) as caught:
        load(tmp_path, text, name)
    message = str(caught.value)
    assert str(tmp_path / name) in message
    assert "\n" not in message
    return message.removeprefix(str(tmp_path / name)).removeprefix(", ").removeprefix(": ")


def test_figures_mean_what_their_columns_say(tmp_path: Path) -> None:
    profile = load(tmp_path, TABLE)
    assert [layer.name for layer in profile.layers] == ["embed", "block", "head"]
    embed, block, head = profile.costs(micro_batch=1)
    assert embed.forward_us == 300
    assert embed.weight_bytes == 600 * 2**20
    assert embed.saved_bytes == 20 * 2**20
    assert embed.boundary_bytes == 16 * 2**20
    assert (embed.backward_input_us, embed.backward_weight_us) == (0, 1100), "an embedding has no input half"
    assert block.backward_us == 3100
    assert (block.backward_input_us, block.backward_weight_us) == (1600, 1600)
    assert not head.is_splittable
    assert head.joint_backward_us == 6000
    assert block.recompute_us is None
    assert block.peak_bytes == 0


def test_units_stand_in_the_names_of_columns(tmp_path: Path) -> None:
    other = load(
        tmp_path,
        "layer,forward_us,backward_s,weights_gib,saved_bytes,saved_for_weight_kib,peak_gb,boundary_kb,update_us\n"
        "a,300,0.0011,2,7,3,2,5,9\n",
    ).costs(micro_batch=1)[0]
    assert other == StageCosts(
        forward_us=300,
        backward_us=1100,
        weight_bytes=2 * 2**30,
        saved_bytes=7,
        saved_for_weight_bytes=3 * 2**10,
        peak_bytes=2 * 10**9,
        boundary_bytes=5000,
        update_us=9,
    )


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_spreadsheets_write_separators_marks_and_blank_columns(tmp_path: Path, separator: str) -> None:
    lines = [line + ",," for line in TABLE.splitlines()]
    text = "﻿# model: my model\r\n# device: X100\r\n\r\n" + "\r\n".join(lines) + "\r\n"
    profile = load(tmp_path, text.replace(",", separator))
    assert profile.name == "my model"
    assert profile.device == "X100"
    assert profile.tables == load(tmp_path, TABLE).tables


def test_json_holds_the_same(tmp_path: Path) -> None:
    names = HEADER.split(",")
    rows = [
        {
            name: value if name == "layer" else (float(value) if value else None)
            for name, value in zip(names, line.split(","), strict=True)
        }
        for line in TABLE.splitlines()[1:]
    ]
    expected = load(tmp_path, TABLE)
    for document in (rows, {"layers": rows}, {"schema_version": 1, "model": "table", "layers": rows}):
        assert load(tmp_path, json.dumps(document), "table.json") == expected
    message = refusal(tmp_path, json.dumps({"layers": rows, "colour": 1}), "table.json")
    assert "colour" in message
    assert "schema_version 2" in refusal(
        tmp_path, json.dumps({"layers": rows, "schema_version": 2}), "table.json"
    )


def test_rows_repeat_for_context_and_experts(tmp_path: Path) -> None:
    header = "layer,forward_ms,backward_ms,weights_mib,expert_mib,saved_mib,boundary_mib,context_parallel"
    degrees = ((1, 1), (2, 1), (2, 2), (2, 4))
    rows = [f"a,1,2,{40 // e + 10},{40 // e},1,1,{c},{e}" for c, e in degrees]
    profile = load(tmp_path, "\n".join([f"{header},expert_parallel", *rows]))
    assert [tuple(each.degrees) for each in profile.tables] == [(1, 1, c, e) for c, e in degrees]
    (cost,) = profile.costs(micro_batch=1, context_parallel=2, expert_parallel=4)
    assert (cost.weight_bytes, cost.expert_bytes) == (20 << 20, 10 << 20)
    assert cost.expert_ratio == 0.5
    save_table(profile, tmp_path / "again.csv")
    assert load_profile(tmp_path / "again.csv").tables == profile.tables
    with pytest.raises(ScheduleError, match=r"context-parallel degree 4; it has 1 × 1, 1 × 1 × context 2"):
        profile.costs(micro_batch=1, context_parallel=4)
    assert "more than the 10485760 of weight_bytes" in refusal(tmp_path, f"{header}\na,1,2,10,11,1,1,1")
    assert "context-parallel degree 2 is given twice" in _refused(profile)


def _refused(profile: Profile) -> str:
    with pytest.raises(ScheduleError) as caught:
        msgspec.structs.replace(profile, tables=profile.tables[1:2] * 2)
    return str(caught.value)


def test_rows_repeat_for_micro_batches_and_degrees(tmp_path: Path) -> None:
    rows = [
        f"{layer},{micro_batch}.5,{2 * micro_batch},10,{micro_batch},1,{micro_batch},{degree}"
        for micro_batch in (1, 4)
        for degree in (1, 2)
        for layer in ("a", "b")
    ]
    header = "layer,forward_ms,backward_ms,weights_mib,saved_mib,boundary_mib,micro_batch,tensor_parallel"
    profile = load(tmp_path, "\n".join([header, *rows]))
    assert profile.micro_batches == (1, 4)
    assert {each.tensor_parallel for each in profile.tables} == {1, 2}
    assert profile.costs(micro_batch=4, tensor_parallel=2)[0].forward_us == 4500
    assert load_profile(tmp_path / "table.csv", micro_batch=4, tensor_parallel=1).tables == (
        profile.tables[2],
    )
    with pytest.raises(DocumentError, match="it has no micro-batch size 2; choose one of 1, 4"):
        load_profile(tmp_path / "table.csv", micro_batch=2)
    assert "'b' is expected" in refusal(tmp_path, "\n".join([header, *rows[:3], rows[3].replace("b", "c")]))
    assert "ends after 1 layers" in refusal(tmp_path, "\n".join([header, *rows[:3]]))
    assert "row 4: micro_batch is blank" in refusal(
        tmp_path, "\n".join([header, *rows[:2], "a,1,1,1,1,1,,2"])
    ).replace("row 4, micro_batch: ", "row 4: ")


def test_micro_batch_size_is_told_where_the_file_does_not_say(tmp_path: Path) -> None:
    assert load(tmp_path, TABLE).micro_batches == (1,)
    assert load_profile(tmp_path / "table.csv", micro_batch=8).micro_batches == (8,)


def test_blocks_are_repeated_to_a_number_of_layers(tmp_path: Path) -> None:
    load(tmp_path, TABLE)
    profile = load_profile(tmp_path / "table.csv", num_layers=10)
    costs = profile.costs(micro_batch=1)
    assert [cost.forward_us for cost in costs] == [300, *[1500] * 8, 3000]
    uneven = TABLE.replace("head,3", "block1,2,4,2,2,300,200,16\nhead,3")
    (tmp_path / "table.csv").write_text(uneven)
    with pytest.raises(DocumentError, match="not one repeated block"):
        load_profile(tmp_path / "table.csv", num_layers=10)


def change(row: int, old: str, new: str) -> str:
    lines = TABLE.splitlines()
    assert old in lines[row]
    lines[row] = lines[row].replace(old, new, 1)
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("", "", "is empty"),
        (HEADER, "", "it has no layers"),
        ("# only: comments", "", "no header"),
        (change(0, "forward_ms", "forward"), "row 1", "has no unit; name it forward_ms"),
        (change(0, "forward_ms", "foward_ms"), "row 1", "did you mean forward_ms"),
        (change(0, "backward_input_ms", "forward_us"), "row 1", "forward_ms and forward_us say the same"),
        (change(0, "forward_ms", "elapsed"), "row 1", "a table begins with layer,forward_ms,backward_ms"),
        (change(0, ",weights_mib", ","), "row 1", "a column has no name"),
        (TABLE.replace("backward_ms", "recompute_ms"), "row 4", "it has no backward"),
        (change(1, "0.3", "-0.3"), "row 2, forward_ms", "-0.3 is no time or size"),
        (change(1, "0.3", "nan"), "row 2, forward_ms", "'nan' is no number"),
        (change(1, "0.3", "inf"), "row 2, forward_ms", "'inf' is no number"),
        (change(1, "0.3", "1e400"), "row 2, forward_ms", "no time or size"),
        (change(1, "600", "1e308"), "row 2, weights_mib", "no time or size"),
        (change(1, "0.3", "0.3 ms"), "row 2, forward_ms", "'0.3 ms' is no number"),
        (change(1, "0.3", "1_0"), "row 2, forward_ms", "'1_0' is no number"),
        (change(1, "0.3", '"0,3"'), "row 2, forward_ms", "decimal comma"),
        (change(1, "0.3", "3700000"), "row 2", "check its unit"),
        (change(1, "600", "629145600"), "row 2", "check its unit"),
        (change(1, "0.3", ""), "row 2", "forward_ms is blank"),
        (change(1, "600", ""), "row 2", "weights_mib is blank"),
        (change(2, "200", ""), "row 3", "saved_mib is blank"),
        (change(2, ",16", ","), "row 3", "boundary_mib is blank"),
        (change(3, ",6,", ",,"), "row 4", "it has no backward"),
        (change(2, "block", ""), "row 3", "the layer has no name"),
        (change(2, "block", "embed"), "row 3", "'embed' stands already in row 2"),
        (change(2, "block", "bl\x07ck"), "row 3", "cannot be printed"),
        (change(2, "block", "b" * 300), "row 3", "300 characters"),
        (change(2, "block,", "block,1,"), "row 3", "it has 9 fields and the header 8"),
        (change(2, ",16", ""), "row 3", "it has 7 fields and the header 8"),
        (change(2, "1.6,1.6", "1600,1600"), "row 3", "cannot be of one unit"),
        (
            TABLE.replace("0.3,", "300,").replace(",1.5,", ",15000,").replace("head,3,", "head,3000,"),
            "row 3",
            "times as long as all forwards",
        ),
        (change(2, "block", '"block'), "", "no CSV file"),
        (
            TABLE.replace("\n", ",20\n").replace(",20", ",spread", 1),
            "row 2, spread",
            "20 is no share of a time",
        ),
    ],
)
def test_bad_tables_are_refused_with_row_and_remedy(
    tmp_path: Path, text: str, place: str, problem: str
) -> None:
    message = refusal(tmp_path, text)
    assert message.startswith(place)
    assert problem in message
    if place:
        assert ";" in message, "the remedy stands behind a semicolon"


@pytest.mark.parametrize("name", ["layer", "forward_ms", "weights_mib", "saved_mib", "boundary_mib"])
def test_missing_columns_are_named(tmp_path: Path, name: str) -> None:
    index = HEADER.split(",").index(name)
    lines = [line.split(",") for line in TABLE.splitlines()]
    text = "\n".join(",".join(field for at, field in enumerate(line) if at != index) for line in lines)
    assert f"row 1: the column {name} is missing; add it" in refusal(tmp_path, text)


def test_backward_is_asked_for_unless_nothing_is_trained(tmp_path: Path) -> None:
    text = "layer,forward_ms,backward_input_ms,weights_mib,saved_mib,boundary_mib\na,1,1,1,1,1\n"
    assert "backward_ms is missing" in refusal(tmp_path, text)
    inference = load(tmp_path, text.replace("backward_input_ms,", "").replace("1,1,1,1,1", "1,1,3,1"))
    assert not inference.is_training
    # What a micro-batch leaves behind, such as its part of a cache of keys and values.
    assert inference.tables[0].costs[0].saved_bytes == 3 * 2**20


def test_numbers_in_json_are_checked_alike(tmp_path: Path) -> None:
    row = {
        "layer": "a",
        "forward_ms": 1,
        "backward_ms": 2,
        "weights_mib": 1,
        "saved_mib": 1,
        "boundary_mib": 1,
    }
    for key, value, problem in (
        ("forward_ms", True, "got `bool`"),
        ("forward_ms", -1, "no time or size"),
        ("layer", 3, "3 is no text"),
        ("saved_mib", "1 MiB", "is no number"),
    ):
        assert problem in refusal(tmp_path, json.dumps([row, row | {"layer": "b", key: value}]), "t.json")
    assert "row 2" in refusal(tmp_path, json.dumps([row, row | {"layer": "b", "cost": 1}]), "t.json")


times = st.floats(0, 1e6).map(lambda value: float(f"{value:.9g}"))
sizes = st.integers(0, 2**43)
names = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12).filter(
    str.isprintable
)


def spreads(count: int) -> st.SearchStrategy[tuple[float, ...] | msgspec.UnsetType]:
    some = st.lists(st.floats(0, 2), min_size=count, max_size=count).filter(any)
    return st.just(msgspec.UNSET) | some.map(tuple)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    labels = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    shares = {"forward_us": times, "backward_us": times, "weight_bytes": sizes, "saved_bytes": sizes}
    optional = {"recompute_us": times, "update_us": times, "saved_for_weight_bytes": sizes}
    degree = st.integers(1, 4)
    keys = draw(
        st.lists(
            st.builds(Degrees, st.integers(1, 9), degree, degree, degree), min_size=1, max_size=2, unique=True
        )
    )

    def cost() -> StageCosts:
        figures = {key: draw(strategy) for key, strategy in shares.items()}
        figures["backward_us"] = figures["forward_us"] * draw(st.sampled_from([0.5, 2.0]))
        figures |= {key: draw(st.none() | strategy) for key, strategy in optional.items()}
        figures["expert_bytes"] = draw(st.sampled_from([0, figures["weight_bytes"] // 2]))
        return StageCosts(peak_bytes=draw(sizes), boundary_bytes=draw(sizes), **figures)

    return Profile(
        name="model",
        device=draw(st.sampled_from(["", "X100"])),
        layers=tuple(Layer(label, draw(st.sampled_from(["", "tie"]))) for label in labels),
        tables=tuple(
            CostTable(
                **key._asdict(), costs=tuple(cost() for _ in labels), spreads=draw(spreads(len(labels)))
            )
            for key in keys
        ),
    )


@settings(max_examples=60, deadline=None)
@given(profile=profiles(), suffix=st.sampled_from([".csv", ".json"]))
def test_written_tables_are_read_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, profile: Profile, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("tables") / f"table{suffix}"
    save_table(profile, path)
    found = load_profile(path)
    assert (found.name, found.device, found.layers) == (profile.name, profile.device, profile.layers)
    for table, expected in zip(found.tables, profile.tables, strict=True):
        assert (table.degrees, table.spreads) == (expected.degrees, expected.spreads)
        for cost, wanted in zip(table.costs, expected.costs, strict=True):
            for name in StageCosts.__struct_fields__:
                value, other = getattr(cost, name), getattr(wanted, name)
                assert value == (other if name.endswith("_bytes") or other is None else pytest.approx(other))


def test_files_of_no_format_are_refused_by_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"colour": 1, "size": 2}')
    with pytest.raises(DocumentError, match="it has colour, size, which is no profile"):
        load_profile(tmp_path / "other.json")
    with pytest.raises(ValueError, match="format 'excel' is not known"):
        load_profile(tmp_path / "other.json", format_name="excel")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DocumentError, match=r"is a folder without plan\.json"):
        load_profile(tmp_path / "folder")

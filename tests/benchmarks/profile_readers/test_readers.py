"""One contract for all formats of other planners that benchmarks read, on extracts of published files."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.profile_readers.__main__ import main
from benchmarks.profile_readers.load import FORMATS, detect_format, load
from tessel.errors import DocumentError
from tessel.profiles import Profile, load_profile, save_table

EXTRACTS = Path(__file__).parent / "extracts"


@dataclass(frozen=True)
class Case:
    """A file of a format, and what it says.

    Attributes:
        file: path within the extracts.
        name: of the model.
        device: measured on.
        num_layers: in the profile.
        tables: micro-batch sizes and degrees.
        layer: number of a layer whose figures a person worked out.
        figures: of that layer in the first table.
        number: a text in the file that is one number, to be damaged.
    """

    file: str
    name: str
    device: str
    num_layers: int
    tables: tuple[tuple[int, int], ...]
    layer: int
    figures: dict[str, float]
    number: str


MIB = 2**20
CASES = {
    "sailor": Case(
        "sailor/OPT-350/A100-40/profile.json",
        "OPT-350",
        "A100-40",
        26,
        ((1, 1), (1, 2), (4, 1), (4, 2)),
        1,
        # the update, 2 938 us for the whole, by this layer's share of 407 431 168 weights
        {
            "forward_us": 2786,
            "backward_us": 5906,
            "weight_bytes": 50384896,
            "saved_bytes": 360726528,
            "boundary_bytes": 8388608,
            "update_us": 2938 * 12596224 / (53608448 + 24 * 12596224 + 51513344),
        },
        "0.002786",
    ),
    "aceso": Case(
        "aceso/A100-40/fp16/GPT-Neo-2.7_mbs1_tp1_algo0.csv",
        "GPT-Neo-2.7",
        "A100-40",
        34,
        ((1, 1), (2, 1)),
        33,
        {
            "forward_us": 83.399 + 12654.418,
            "backward_us": 419.7 + 7840.657,
            "weight_bytes": round(626.25 * MIB),
            "saved_bytes": round((10.016 + 1002.025) * MIB),
            "peak_bytes": round(501.975 * MIB),
            "boundary_bytes": 0,
        },
        "12654.418",
    ),
    "metis": Case(
        "metis/DeviceType.X100_tp1_bs1.json",
        "made-up",
        "X100",
        4,
        ((1, 1), (1, 2), (2, 1), (2, 2)),
        1,
        {
            "forward_us": 3000,
            "backward_us": 6000,
            "weight_bytes": MIB,
            "saved_bytes": 6 * MIB,
            "boundary_bytes": MIB // 2,
            "update_us": 1000,
        },
        "1.5",
    ),
    "pipedream": Case(
        "pipedream/gnmt/graph.txt",
        "gnmt",
        "",
        48,
        ((1, 1),),
        4,
        # behind node5 only its own output is alive; its three inputs are ended or cost nothing
        {
            "forward_us": 5247,
            "backward_us": 16,
            "weight_bytes": 67174400,
            "saved_bytes": 12582912,
            "boundary_bytes": 12582912,
        },
        "5.247",
    ),
    "neusight": Case(
        "neusight/H100/gpt2_large-train-1024-1.csv",
        "gpt2_large",
        "H100",
        38,
        ((1, 1),),
        1,
        {
            "forward_us": 1808.88,
            "backward_us": 3465.8,
            "weight_bytes": 78709760,
            "boundary_bytes": 1024 * 1280 * 4,
        },
        "0.23",
    ),
}


def copied(case: Case, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(EXTRACTS / Path(case.file).parts[0], folder / Path(case.file).parts[0])
    return folder / case.file


def test_every_format_has_a_case() -> None:
    assert CASES.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", CASES)
def test_extracts_are_read_for_what_they_say(name: str) -> None:
    case = CASES[name]
    path = EXTRACTS / case.file
    assert detect_format(path, path.read_bytes()) == name
    profile = load(path)
    assert load(path, format_name=name) == profile
    assert (profile.name, profile.device, len(profile.layers)) == (case.name, case.device, case.num_layers)
    assert tuple((table.micro_batch, table.tensor_parallel) for table in profile.tables) == case.tables
    assert profile.is_training
    assert profile.notes, "what the file does not say is said"
    cost = profile.tables[0].costs[case.layer]
    for figure, value in case.figures.items():
        assert getattr(cost, figure) == pytest.approx(value, rel=1e-4), figure


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_profiles_become_tables_that_say_the_same(name: str, suffix: str, tmp_path: Path) -> None:
    profile = load(EXTRACTS / CASES[name].file)
    save_table(profile, tmp_path / f"table{suffix}")
    table = load_profile(tmp_path / f"table{suffix}")
    assert table.layers == profile.layers
    for found, expected in zip(table.tables, profile.tables, strict=True):
        assert [cost.saved_bytes for cost in found.costs] == [cost.saved_bytes for cost in expected.costs]
        for figure in ("forward_us", "joint_backward_us", "update_us"):
            assert [getattr(cost, figure) for cost in found.costs] == pytest.approx(
                [getattr(cost, figure) for cost in expected.costs]
            )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("value", ["-1.0", "NaN", "1e300", "oops", ""])
def test_damaged_figures_are_refused_by_file(name: str, value: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = copied(case, tmp_path)
    text = path.read_text()
    assert case.number in text
    path.write_text(re.sub(re.escape(case.number) + r"\d*", value, text, count=1))
    with pytest.raises(DocumentError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert ";" in str(caught.value)
    if name != "sailor" or value in ("-1.0", "1e300"):  # of JSON that is none, only the byte is known
        assert re.search(r"row \d+|layer|not whole JSON|malformed", str(caught.value))


@pytest.mark.parametrize("name", CASES)
def test_cut_files_are_refused_or_read(name: str, tmp_path: Path) -> None:
    path = copied(CASES[name], tmp_path)
    whole = path.read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:length])
        with contextlib.suppress(DocumentError):
            assert isinstance(load(path), Profile)


def damaged(name: str, tmp_path: Path, change: Callable[[str], str]) -> str:
    path = copied(CASES[name], tmp_path)
    path.write_text(change(path.read_text()))
    with pytest.raises(DocumentError) as caught:
        load(path)
    return str(caught.value)


def test_folder_stands_for_the_file_in_it(tmp_path: Path) -> None:
    folder = (EXTRACTS / CASES["sailor"].file).parent
    assert load(folder) == load(EXTRACTS / CASES["sailor"].file)
    with pytest.raises(DocumentError, match="is a folder without"):
        load(tmp_path)


def test_other_files_are_refused_by_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"colour": 1, "size": 2}')
    with pytest.raises(DocumentError, match="it has colour, size, which is no profile"):
        load(tmp_path / "other.json")
    (tmp_path / "other.csv").write_text("layer,forward_ms\n")
    with pytest.raises(DocumentError, match="no profile of another planner; these are read: sailor"):
        load(tmp_path / "other.csv")


def test_command_writes_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case, table = CASES["metis"], tmp_path / "table.csv"
    arguments = ["profile_readers", str(EXTRACTS / case.file), "--out", str(table)]
    monkeypatch.setattr("sys.argv", arguments)
    assert main() == 0
    assert len(load_profile(table).layers) == case.num_layers
    monkeypatch.setattr("sys.argv", [*arguments, "--num-layers", "2"])
    assert main() == 2
    assert "--num-layers" in capsys.readouterr().err


# Sailor


def test_sailor_without_memory_file_says_that_bytes_are_unknown(tmp_path: Path) -> None:
    path = copied(CASES["sailor"], tmp_path)
    (tmp_path / "copy" / "sailor" / "llm_info.json").unlink()
    profile = load(path)
    assert sum(cost.weight_bytes + cost.saved_bytes for cost in profile.tables[0].costs) == 0
    assert any("unknown and count as 0" in note for note in profile.notes)
    shares = [cost.update_us for cost in profile.tables[0].costs]
    assert shares == pytest.approx([2938 / 26] * 26)


def test_sailor_file_of_several_profiles_wants_an_entry(tmp_path: Path) -> None:
    path = copied(CASES["sailor"], tmp_path)
    times = json.loads(path.read_text())
    path.write_text(json.dumps({"OPT-350": {"A100-40": times}, "GPT": {"V100": times}}))
    expected = load(EXTRACTS / CASES["sailor"].file)
    assert load(path, entry="OPT-350/A100-40") == expected
    with pytest.raises(DocumentError, match="name one with --entry: OPT-350/A100-40, GPT/V100"):
        load(path)
    with pytest.raises(DocumentError, match="it has no entry 'OPT-350'"):
        load(path, entry="OPT-350")
    with pytest.raises(DocumentError, match="has no entries"):
        load(EXTRACTS / CASES["pipedream"].file, entry="gnmt")


def test_sailor_layers_are_numbered(tmp_path: Path) -> None:
    assert "a layer is missing" in damaged("sailor", tmp_path, lambda text: text.replace('"7":', '"70":', 1))
    message = damaged("sailor", tmp_path / "second", lambda text: text.replace('"7":', '"seven":', 1))
    assert "micro-batch size 1" in message
    assert "the layer 'seven' is no number" in message


def test_memory_of_sailor_grows_with_the_micro_batch() -> None:
    profile = load(EXTRACTS / CASES["sailor"].file)
    one, four = (profile.costs(micro_batch=size)[1] for size in (1, 4))
    assert four.saved_bytes == 4 * one.saved_bytes
    assert four.boundary_bytes == 4 * one.boundary_bytes
    assert four.weight_bytes == one.weight_bytes


# Aceso


def test_aceso_block_is_the_sum_of_its_operators() -> None:
    profile = load(EXTRACTS / CASES["aceso"].file)
    rows = [line.split(",") for line in (EXTRACTS / CASES["aceso"].file).read_text().splitlines()]
    inner = [row for row in rows if row[0].startswith("enc-")]
    block = profile.tables[0].costs[1]
    assert block.forward_us == pytest.approx(sum(float(row[1]) for row in inner))
    assert block.saved_bytes == round(sum(float(row[6]) for row in inner) * MIB)
    assert len(set(profile.tables[0].costs[1:-1])) == 1


def test_aceso_of_another_model_asks_for_its_layers(tmp_path: Path) -> None:
    path = tmp_path / "Mine_mbs1_tp1_algo0.csv"
    shutil.copy(EXTRACTS / CASES["aceso"].file, path)
    with pytest.raises(DocumentError, match=r"it holds one block.*add --num-layers"):
        load(path)
    assert len(load(path, num_layers=12).layers) == 12
    (tmp_path / "table.csv").write_bytes(path.read_bytes())
    with pytest.raises(DocumentError, match="its name does not say the micro-batch size"):
        load(tmp_path / "table.csv")


def test_aceso_files_that_did_not_fit_are_left_out(tmp_path: Path) -> None:
    path = copied(CASES["aceso"], tmp_path)
    other = path.with_name("GPT-Neo-2.7_mbs2_tp1_algo0.csv")
    other.write_text(re.sub(r"(enc-MLP-gelu),[\d.]+", r"\1,10000000.000", other.read_text()))
    assert load(path).micro_batches == (1,)
    with pytest.raises(DocumentError, match="enc-MLP-gelu did not fit"):
        load(other)


# PipeDream


def alive_behind(text: str, order: list[str]) -> list[float]:
    """Bytes across each cut, by looking at every edge for every cut."""
    size = {}
    for name, figures in re.findall(r"(?m)^(node\d+) -- .* -- (forward.*)$", text):
        listed = re.search(r"activation_size=\[?([\d.; ]+)", figures)
        assert listed is not None
        size[name] = sum(map(float, listed[1].split(";")))
    inputs = set(re.findall(r"(?m)^(node\d+) -- Input", text))
    edges = re.findall(r"(?m)^\t(node\d+) -- (node\d+)$", text)
    found = []
    for cut in range(1, len(order) + 1):
        before, after = set(order[:cut]) - inputs, set(order[cut:])
        crossing = {source for source, target in edges if source in before and target in after}
        found.append(sum(size[name] for name in crossing))
    return found


def test_cuts_of_a_graph_carry_all_that_is_needed_behind() -> None:
    path = EXTRACTS / CASES["pipedream"].file
    profile = load(path)
    order = [layer.name.split()[0] for layer in profile.layers]
    edges = re.findall(r"(?m)^\t(node\d+) -- (node\d+)$", path.read_text())
    assert all(order.index(source) < order.index(target) for source, target in edges)
    boundaries = [cost.boundary_bytes for cost in profile.tables[0].costs]
    assert boundaries == alive_behind(path.read_text(), order)
    assert len(set(boundaries)) > 5


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("\tnode47 -- node48", "\tnode47 -- node48\n\tnode48 -- node47", "wait for each other in a cycle"),
        ("\tnode47 -- node48", "\tnode47 -- node480", "row 106: the node 'node480' does not exist"),
        ("\tnode47 -- node48", "\tnode47", "is no edge"),
        ("node9 -- __getitem__(1) -- ", "node9 -- ", "is no node"),
        ("node9 -- ", "node8 -- ", "node8 stands already in row 7"),
        ("forward_compute_time=5.247, ", "", "row 3: forward_compute_time is missing"),
    ],
)
def test_graphs_that_are_none_are_refused(tmp_path: Path, old: str, new: str, problem: str) -> None:
    text = (EXTRACTS / CASES["pipedream"].file).read_text()
    assert old in text
    assert problem in damaged("pipedream", tmp_path, lambda text: text.replace(old, new, 1))


# Metis and NeuSight


def test_metis_halves_add_up_to_what_was_measured() -> None:
    for cost in load(EXTRACTS / CASES["metis"].file).costs(micro_batch=2, tensor_parallel=1):
        assert cost.backward_us == pytest.approx(2 * cost.forward_us)


def test_metis_wants_a_figure_for_each_layer(tmp_path: Path) -> None:
    message = damaged(
        "metis", tmp_path, lambda text: re.sub(r"(layer_memory_total_mb\": \[\s*20,)", r"\1 5,", text)
    )
    assert "layer_memory_total_mb: it has 5 figures for 4 layers" in message


def test_neusight_sums_come_near_the_measured_whole() -> None:
    """Without rows that hold no kernel; with them the forward is a third too long."""
    profile = load(EXTRACTS / CASES["neusight"].file)
    whole = json.loads((EXTRACTS / CASES["neusight"].file).with_suffix(".json").read_text())
    costs = profile.costs(micro_batch=1)
    assert sum(cost.forward_us for cost in costs) / 1e3 == pytest.approx(whole["fw_latency"], rel=0.1)
    backward_ms = sum(cost.joint_backward_us or 0.0 for cost in costs) / 1e3
    assert backward_ms == pytest.approx(whole["bwall_latency"], rel=0.1)


def test_neusight_weights_are_those_of_gpt2_large() -> None:
    costs = load(EXTRACTS / CASES["neusight"].file).costs(micro_batch=1)
    block = 12 * 1280**2 + 13 * 1280
    assert costs[1].weight_bytes == 4 * block
    assert costs[0].weight_bytes == 4 * 1280 * (50257 + 1024)
    layers = load(EXTRACTS / CASES["neusight"].file).layers
    assert layers[0].tie == layers[-1].tie != ""


def test_neusight_is_given_by_either_file(tmp_path: Path) -> None:
    path = copied(CASES["neusight"], tmp_path)
    assert load(path.with_suffix(".json")) == load(path)
    path.with_suffix(".json").unlink()
    with pytest.raises(DocumentError, match="add --num-layers"):
        load(path)
    inference = path.with_name(path.name.replace("train", "inf"))
    path.rename(inference)
    with pytest.raises(DocumentError, match="not of one network in training"):
        load(inference)


def test_what_fuzzing_found_is_read_or_refused_in_time_and_in_a_line(tmp_path: Path) -> None:
    """Patterns that took a minute for a long word, an operator without extents, a key as long as the file."""
    (label,) = (EXTRACTS / "neusight").rglob("*-train-*.csv")
    table = label.read_text()
    changed = tmp_path / label.name
    for word in ("x" * 10**5, "<class '" + "x" * 10**5, "x.h." * 25_000):
        changed.write_text(table.replace("nn_module_stack", word))
        started = time.process_time()
        with contextlib.suppress(DocumentError):
            load(changed)
        assert time.process_time() - started < 20
    changed.write_text(re.sub(r'"\((\d+, )+\d+\)",torch', '"()",torch', table))
    assert changed.read_text() != table
    with contextlib.suppress(DocumentError):
        load(changed)
    (tmp_path / "GPT" / "A100").mkdir(parents=True)
    profile = tmp_path / "GPT" / "A100" / "profile.json"
    profile.write_text(json.dumps({"1": {"x" * 10**5: {"0": [1e-3, 1e-3, 1e-3]}}}))
    with pytest.raises(DocumentError) as caught:
        load(profile)
    assert len(str(caught.value)) < 1000

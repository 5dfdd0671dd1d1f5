"""Which options of a command go together, and how it says so; test_option_pairs.py tries all pairs."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from option_cases import COMMANDS, options_of

from scripts.main import main
from scripts.options.command_app import CommandApp, command_line_of
from scripts.options.option_rules import OPTION_RULES, help_of, problem_of
from scripts.options.rules.rule import CommandLine, Condition, Rule
from tessel.shapes import SHAPES, make_shape


@pytest.mark.parametrize("infer", [False, True])
@pytest.mark.parametrize("devices", [1, 2, 5])
def test_an_option_of_shapes_is_refused_exactly_where_no_value_of_it_changes_the_placement(
    infer: bool, devices: int
) -> None:

    numbers = ["forward_span", "backward_span", "backward_input_span", "backward_weight_span", "lag"]
    numbers += ["forward_memory", "recompute_memory", "tensor_parallel_span"]
    variants: list[dict[str, Any]] = [{"infer": True}] if infer else [{}, *_variants()]
    num_refused = 0
    for shape, variant, option in itertools.product(SHAPES, variants, numbers):
        if shape == "kshape" and devices == 1:
            continue
        given = {f"--{name.replace('_', '-')}" for name in (*variant, option)}
        line = CommandLine(frozenset({*given, "--devices"}), {"shape": shape, "--devices": devices})
        refused = problem_of("schedule", line) is not None
        makes = [make_shape(shape, devices, **{**variant, option: value}) for value in (6, 9)]
        if option == "backward_span" and "split_backward" in variant:
            assert refused  # the halves would take it for a default; they are given themselves
        else:
            assert refused == (makes[0] == makes[1]), (shape, variant, option)
        num_refused += refused
    assert num_refused > 10


def _variants() -> list[dict[str, Any]]:
    backwards: list[dict[str, Any]] = [{}, {"split_backward": True}, {"choose_backward": True}]
    return [{**backward, **more} for backward in backwards for more in ({}, {"recompute": True})]


WRITES = {"--csv", "--orders", "--json", "--shape"}
"""Options of `run` that have an effect on the orders that are written."""


@pytest.mark.parametrize("option", sorted(options_of(COMMANDS["run"]) - WRITES))
def test_what_runs_something_is_refused_where_orders_are_only_written(folder: Path, option: str) -> None:
    line = CommandLine(frozenset({option, "--csv"}), {"plan": folder / "schedule.json", "--stages": None})
    assert f"{option} has no effect with --csv" in (problem_of("run", line) or "")


@pytest.mark.parametrize(
    ("given", "values", "refused"),
    [
        ("--seed", {"--stages": None, "plan": "schedule.json"}, True),
        ("--seed", {"--stages": "sleep", "plan": "plan.json"}, True),
        ("--seed", {"--stages": "own.py:stages", "plan": "plan.json"}, True),
        ("--seed", {"--stages": None, "plan": "plan.json"}, False),
        ("--seed", {"--stages": "torch", "plan": "plan.json"}, False),
        ("--seed", {"--stages": None, "plan": "missing.json"}, False),  # which the command says itself
        ("--trust-model", {"--stages": "sleep", "plan": "plan.json"}, True),
        ("--trust-model", {"--stages": None, "plan": "schedule.json"}, True),
        ("--trust-model", {"--stages": None, "plan": "plan.json"}, False),
        ("--records", {"--overheads": "none"}, True),
        ("--records", {"--overheads": "known"}, False),
    ],
)
def test_options_of_a_run(folder: Path, given: str, values: dict[str, str], refused: bool) -> None:
    named = {name: folder / value if name == "plan" else value for name, value in values.items()}
    assert (problem_of("run", CommandLine(frozenset({given}), named)) is not None) == refused


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("tune", "own.pt2 --batch 1"),
        ("tune", "module:function --batch 4"),
        ("tune", "mlp:tiny --target cuda --threads 2"),
        ("tune", "mlp:tiny --target nvidia/nvidia-a100 --threads 2"),
        ("tune", "mlp:tiny --backends tvm,blas --trials 8"),
        ("tune", "mlp:tiny --backends blas --tvm-database db"),
        ("tune", "mlp:tiny --trials 8 --price model --proposer draft"),
        ("tune", "mlp:tiny --backends tvm,packed_matmul --trials 8"),
        ("tune", "mlp:tiny --price model --graph-level-search 4"),
        ("tune", "mlp:tiny --devices 1 --hop-us 3"),
        ("tune", "mlp:tiny --infer --optimizer adam"),
        ("partition", "mlp:tiny --price model --coalesce"),
        ("partition", "mlp:tiny --cost-model folder"),
        ("stages", "mlp:tiny --devices 2 --cut layer:0"),
        ("plan", "profile.csv --devices 4 --target cuda"),
        ("plan", "profile.csv --devices 4 --trials 4"),
        ("plan", "profile.csv --devices 4 --batch 4"),
        ("plan", "gpt2:tiny --devices 4 --num-layers 8"),
        ("plan", "gpt2:tiny --devices 4 --micro-batch 2"),
        ("plan", "gpt2:tiny --devices 4 --format csv"),
        ("plan", "profile.csv --devices 2 --memory 4GiB --device-memory 4GiB,8GiB"),
        ("plan", "profile.csv --devices 2 --global-batch 8 --micro-batches 8"),
        ("plan", "profile.csv --devices 4 --node-devices 2"),
        ("plan", "profile.csv --devices 4 --node-link 450GB/s"),
        ("plan", "profile.csv --devices 1 --link 10GB/s"),
        ("records best", "--batch 4"),
        ("records best", "mlp:tiny --match any --threads 2"),
        ("records collect", "--networks mlp,resnet:tiny --lengths 16"),
        ("language train", "--resume --width 64"),
    ],
)
def test_options_of_models_and_backends_are_refused_where_nothing_would_come_of_them(
    command: str, arguments: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), *arguments.split()]) == 2
    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    assert "has no effect" in message
    assert "; " in message
    assert not list(tmp_path.iterdir())


def test_help_says_what_an_option_needs(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert help_of("tune", "--budget") == "(needs --price active)"
    found = help_of("schedule", "--recompute-memory")
    assert found == "(needs --recompute; not with a placement file or --infer)"
    for _ in range(2):  # and says it once
        assert main(["tune", "--help-all"]) == 0
        assert capsys.readouterr().out.count("(needs --price active)") == 2


def test_a_command_of_any_app_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    own = CommandApp()
    seen: list[str | None] = []

    @own.command("do")
    def do(a: Annotated[str | None, typer.Option()] = None, b: bool = False) -> None:
        seen.append(a)

    @own.command("other")
    def other() -> None: ...

    needs_b = Rule(needs=(Condition("--b", lambda line: "--b" in line.given),), why="nobody looks at it")
    monkeypatch.setitem(OPTION_RULES, "do", {"--a": (needs_b,)})  # type: ignore[attr-defined]
    command = typer.main.get_command(own)
    with pytest.raises(typer.BadParameter, match="--a has no effect without --b, since nobody looks at it;"):
        command.main(["do", "--a", "x"], prog_name="own", standalone_mode=False)
    assert seen == []
    command.main(["do", "--a", "x", "--b"], prog_name="own", standalone_mode=False)
    command.main(["do"], prog_name="own", standalone_mode=False)
    assert seen == ["x", None]


def documented() -> list[list[str]]:
    """The words of every command in the README, the documentation and the help."""
    root = Path(__file__).parents[3]
    texts = [
        path.read_text(encoding="utf-8") for path in (root / "README.md", *sorted(root.glob("docs/*.md")))
    ]
    blocks = [block for text in texts for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    helps = [
        example for command in COMMANDS.values() for example in re.findall(r"`(tessel [^`]+)`", command.help)
    ]
    return [shlex.split(line, comments=True)[1:] for line in (*lines, *helps) if line.startswith("tessel ")]


def test_no_documented_command_is_refused() -> None:
    found = documented()
    assert len(found) > 50
    for words in found:
        command = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)
        if command is None or any(word in "|&;<>" or word.startswith("--help") for word in words):
            continue
        context = COMMANDS[command].make_context(
            "tessel", words[len(command.split()) :], resilient_parsing=True
        )
        assert problem_of(command, command_line_of(context)) is None, words

"""Of any two options of any command, each has an effect beside the other, or the two are refused.

Effects are looked at, not declared: a command runs with its searches and measurements replaced by spies, and
what it does (the spies' arguments, stdout, files) must differ from what it does without the option.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import pytest
from option_cases import CHEAP, COMMANDS, OF_TORCH, OF_TVM, ONLY_BY_RULES, ROOT, Case, options_of

from records import RecordStore
from scripts.main import main
from scripts.options.command_app import CheckedCommand
from scripts.options.option_rules import OPTION_RULES
from tessel.documents import load_schedule
from tessel.loading import load_plan
from tessel.search import find_repetend

Call = tuple[str, object]


@dataclass(frozen=True)
class Done:
    """What a command did: exit status, output, what the spies were called with, and the files it wrote."""

    status: int
    stdout: str
    stderr: str
    calls: tuple[Call, ...]
    files: tuple[tuple[str, bytes], ...]

    def refuses(self, option: str) -> bool:
        lines = self.stderr.splitlines()
        named = re.search(rf"{option}\b", self.stderr) is not None
        return self.status == 2 and len(lines) == 1 and "has no effect" in self.stderr and named

    @property
    def effect(self) -> object:
        return self.stdout, self.stderr, self.calls, self.files


Run = Callable[..., Done]


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command with spies in place of its work; each command line once."""

    schedule = load_schedule(folder / "schedule.json")
    made = {
        "{schedule}": schedule,
        "{repetend}": find_repetend(schedule.placement, time_limit_s=1.0),
        "{plan}": load_plan(folder / "plan.json"),
    }
    monkeypatch.setattr("scripts.main.typer.main.get_command", lambda _: ROOT)
    calls: list[Call] = []
    known: dict[tuple[str, ...], Done] = {}
    out = folder / "out"

    def spy(name: str, returned: object) -> Callable[..., object]:
        def called(*arguments: object, **named: object) -> object:
            calls.append((name, plain((arguments, named))))
            if returned == "{file}":
                Path(str(arguments[1])).write_bytes(b"picture")
                return None
            if isinstance(returned, str):
                return made.get(returned, returned)
            return returned() if callable(returned) else returned

        return called

    def once(command: str, case: Case, arguments: str) -> Done:
        words = [*command.split(), *shlex.split(arguments.format(folder=folder))]
        key = tuple(words)
        if key not in known:
            for name, returned in case.spies.items():
                monkeypatch.setattr(name, spy(name, returned))
            out.mkdir(exist_ok=True)
            calls.clear()
            status = main(words)
            captured = capsys.readouterr()
            files = sorted(path for path in out.rglob("*") if path.is_file())
            contents = tuple((path.name, path.suffix == ".db" or path.read_bytes()) for path in files)
            for path in files:
                path.unlink()
            known[key] = Done(status, captured.out, captured.err, tuple(calls), contents)
        return known[key]

    return once


def plain(value: object) -> object:
    """What can be compared: functions by what they are, stores by where."""
    if isinstance(value, RecordStore):
        return value.location
    if is_dataclass(value) and not isinstance(value, type):
        return (
            type(value).__name__,
            *(plain(getattr(value, each.name)) for each in fields(value) if not each.name.startswith("_")),
        )
    if isinstance(value, dict):
        return tuple((key, plain(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    if isinstance(value, Iterator):
        return tuple(map(repr, value))
    if callable(value):
        return type(value).__name__
    return repr(value)


def written(option: str, case: Case) -> str:
    return f"{option} {case.samples[option]}".strip()


def joined(
    base: str, case: Case, options: tuple[str, ...], *, with_context: bool, without: str | None = None
) -> str:
    """The command line: base, what the options need besides each other, and the options, but for one."""
    needed = [
        part[0]
        for option in options
        for part in _OPTION.finditer(case.context.get(option, "") if with_context else "")
        if part[1] not in options
    ]
    own = [written(option, case) for option in options if option != without]
    return " ".join([base, *needed, *own])


_OPTION = re.compile(r"(--[a-z-]+)( [^- ]\S*)?")


def ineffective_pairs(run: Run, command: str, case: Case, *, every: int = 1) -> tuple[list[str], int]:
    """Try all pairs, or one of so many; return what is accepted and ignored, and how many took effect."""
    bad: list[str] = []
    num_effective = 0
    flags = {"--train": "--infer", "--infer": "--train"}
    for base, with_context in itertools.product(case.bases, (False, True)):
        for pair in itertools.islice(itertools.combinations(sorted(case.samples), 2), 0, None, every):
            if flags.get(pair[0]) == pair[1]:
                continue  # two names of one option
            line = joined(base, case, pair, with_context=with_context)
            both = run(command, case, line)
            if both.status == 2:
                shown = [option for option in case.samples if both.refuses(option)]
                if not shown:
                    bad.append(f"{line}: refused without saying why: {both.stderr}")
                continue
            if both.status != 0:
                bad.append(f"{line}: status {both.status}: {both.stderr}")
                continue
            for option in pair:
                rest = joined(base, case, pair, with_context=with_context, without=option)
                alone = run(command, case, rest)
                if (
                    alone.status == 0
                    and alone.effect == both.effect
                    and not _is_default(command, option, case)
                ):
                    bad.append(f"{line}: {option} changes nothing")
                num_effective += 1
    return bad, num_effective


def _is_default(command: str, option: str, case: Case) -> bool:
    """Whether writing the option says what would be so anyway, as one name of each two-named flag does."""
    for parameter in COMMANDS[command].params:
        if option in parameter.secondary_opts:
            return parameter.default is False
        if option in parameter.opts and parameter.secondary_opts:
            return parameter.default is True
    return False


def check(run: Run, command: str, case: Case, every: int) -> None:
    assert set(case.samples) == options_of(COMMANDS[command])
    for option in case.samples:  # no pair proves anything of an option that is refused everywhere
        lines = [
            (joined(base, case, (option,), with_context=context), joined(base, case, (), with_context=False))
            for base, context in itertools.product(case.bases, (False, True))
        ]
        effects = [run(command, case, line).effect != run(command, case, base).effect for line, base in lines]
        accepted = [run(command, case, line).status == 0 for line, _ in lines]
        assert _is_default(command, option, case) or any(map(all, zip(effects, accepted, strict=True))), (
            option
        )
    bad, num_effective = ineffective_pairs(run, command, case, every=every)
    assert not bad, "\n".join(bad)
    assert num_effective >= (len(case.samples) - 1) // every


def test_every_command_is_tried_and_rules_are_of_its_options() -> None:
    for command, rules in OPTION_RULES.items():
        assert rules.keys() <= options_of(COMMANDS[command])
        assert all(rules.values())
    assert {*CHEAP, *OF_TVM, *OF_TORCH} | ONLY_BY_RULES == set(COMMANDS)
    assert all(isinstance(command, CheckedCommand) for command in COMMANDS.values())


PAIRS = pytest.mark.parametrize("every", [37, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
"""Each option is tried by itself always, and each thirty-seventh pair: there are thousands."""


@PAIRS
@pytest.mark.parametrize("command", CHEAP)
def test_both_options_of_a_pair_have_an_effect(run: Run, command: str, every: int) -> None:
    check(run, command, CHEAP[command], every)


@pytest.mark.tvm
@PAIRS
@pytest.mark.parametrize("command", OF_TVM)
def test_both_options_of_a_pair_have_an_effect_on_tuning(run: Run, command: str, every: int) -> None:
    check(run, command, OF_TVM[command], every)


@pytest.mark.torch
@pytest.mark.tvm
@PAIRS
@pytest.mark.parametrize("command", OF_TORCH)
def test_both_options_of_a_pair_have_an_effect_on_language(run: Run, command: str, every: int) -> None:
    check(run, command, OF_TORCH[command], every)


def test_an_option_that_is_ignored_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: with the rules gone, it names what they refuse."""
    monkeypatch.setitem(OPTION_RULES, "draw", dict.fromkeys(OPTION_RULES["draw"], ()))  # type: ignore[attr-defined]
    bad, _ = ineffective_pairs(run, "draw", CHEAP["draw"])
    assert any("--schedules changes nothing" in line for line in bad)
    assert any("--critical-path changes nothing" in line for line in bad)

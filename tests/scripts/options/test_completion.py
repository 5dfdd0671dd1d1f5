"""What the shell is offered: options and names, near at hand and true."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scripts.options import completion


def completed(line: str) -> list[str]:
    """Return what bash would be offered for the last word of a line, as the installed script asks for it."""
    words = line.split(" ")
    environment = {
        **os.environ,
        "_TESSEL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "scripts"], env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tessel sch", ["schedule"]),
        ("tessel records st", ["stats"]),
        ("tessel schedule --split", ["--split-backward"]),
        ("tessel schedule vsh", ["vshape"]),
        ("tessel compare plan.json --schedules 1f1b,gp", ["1f1b,gpipe"]),
        ("tessel tune mlp --optimizer ad", ["adam"]),
    ],
)
def test_bash_is_offered_commands_options_and_names(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


def test_sizes_follow_a_colon_and_lists_go_on_after_a_comma() -> None:
    assert completion.models("mob") == ["mobilenet"]
    assert completion.models("gpt2:t") == ["gpt2:tiny"]
    assert completion.backends("tvm,") == [f"tvm,{name}" for name in completion.BACKENDS if name != "tvm"]
    assert completion.targets("nv") == ["nvidia/"]


def test_no_completion_of_a_name_needs_tvm() -> None:
    code = (
        "import sys; from scripts.options import completion as c; c.models('g'); c.backends('t'); "
        "c.targets('c'); c.shapes('v'); c.schedules('z'); "
        "assert 'tvm' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.tvm
def test_the_names_that_are_written_down_are_the_real_ones() -> None:
    from tuner.backends.registry import backend_names  # noqa: PLC0415  imports TVM
    from tuner.frontend import MODELS  # noqa: PLC0415 - imports TVM
    from tuner.targets.resolution import known_targets  # noqa: PLC0415 - imports TVM

    assert {name: model.SIZES for name, model in MODELS.items()} == completion.MODELS
    assert backend_names() == completion.BACKENDS
    for target in known_targets():
        assert completion.targets(target.partition("/")[0]), target
    assert "nvidia/nvidia-a100" in completion.targets("nvidia/nvidia-a1")

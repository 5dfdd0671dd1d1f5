"""Shapes on the command line: one for each input, or several of one; and models that are not there."""

import subprocess
import sys

import pytest

from tessel.errors import UsageError
from tessel.jobs.inputs.arguments import describe_shapes, parse_shape_choices, parse_shapes, parse_values


def test_shapes_of_one_input_are_sets_with_what_all_share_the_largest_first() -> None:
    given = ["ids=1,64", "image=1,3,8,8", "ids=1,128", "ids=2,16"]
    assert parse_shape_choices(given) == [
        {"ids": (1, 128), "image": (1, 3, 8, 8)},
        {"ids": (1, 64), "image": (1, 3, 8, 8)},
        {"ids": (2, 16), "image": (1, 3, 8, 8)},
    ]
    assert parse_shape_choices(["a=2", "b=3", "a=4", "b=5"]) == [
        {"a": (4,), "b": (5,)},
        {"a": (2,), "b": (3,)},
    ]
    assert parse_shape_choices([]) == [{}]
    assert describe_shapes(parse_shape_choices(given)[0]) == "ids=1,128 image=1,3,8,8"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a=2", "a=3", "b=1", "b=2", "b=3"], "gives a 2 shapes, and another input 3"),
        (["a=2", "a=2"], "gives a one shape twice"),
        (["a"], "is not NAME=EXTENT"),
    ],
)
def test_shapes_that_make_no_sets_are_refused(given: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_shape_choices(given)


def test_a_command_that_takes_one_shape_says_who_takes_several() -> None:
    assert parse_shapes(["a=2", "b=3"]) == {"a": (2,), "b": (3,)}
    with pytest.raises(UsageError, match=r"gives b 2 shapes, and this command takes one; `tessel tune`"):
        parse_shapes(["a=2", "b=3", "b=4"])


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("tune", "absent.onnx"),
        ("partition", "absent.pt2"),
        pytest.param("stages", "absent.onnx", marks=pytest.mark.slow),
    ],
)
def test_a_file_that_is_not_there_is_refused_before_tvm_is_loaded(command: str, name: str) -> None:
    script = (
        "import sys; from scripts.app import app\n"
        f"try: app([{command!r}, {name!r}], standalone_mode=False)\n"
        "except Exception as error: print(type(error).__name__, error, 'tvm' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(
        f"ModelFileError cannot read {name}: No such file or directory; check the path False"
    )


def test_values_are_numbers_or_truth_values() -> None:
    given = ["rate=16000", "scale=-2.5e-1", "cached=False", "on=true"]
    assert parse_values(given) == {"rate": 16000, "scale": -0.25, "cached": False, "on": True}
    assert type(parse_values(["a=1"])["a"]) is int


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["rate"], "is not NAME=VALUE"),
        (["=3"], "is not NAME=VALUE"),
        (["rate=fast"], "is not NAME=VALUE"),
        (["rate=nan"], "is not NAME=VALUE"),
        (["rate=1", "rate=2"], "gives rate twice"),
    ],
)
def test_values_that_are_none_are_refused(given: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_values(given)

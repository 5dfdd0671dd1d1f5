"""Errors that real faults of a machine raise are told from those of a program."""

import ctypes
import importlib
import subprocess

import numpy as np
import pytest

from tuner.errors import TunerError
from tuner.machine_faults import is_of_machine, says_machine

FAULTS = {
    "library": lambda: importlib.import_module("a_library_that_is_not_installed"),
    "shared library": lambda: ctypes.CDLL("libnothing.so.7"),
    "tool": lambda: subprocess.run(["a-compiler-that-is-not-installed"], check=True),
    "memory": lambda: np.ones((1 << 55,), np.uint8),
}

PROGRAMS = {
    "index": lambda: [][1],
    "shape": lambda: np.ones(3) @ np.ones(4),
    "named": lambda: {}["memory"],
}


def error_of(action) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of any kind
        action()
    return raised.value


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_machine_is_known_by_its_type_by_its_text_and_as_a_cause(name: str) -> None:
    error = error_of(FAULTS[name])
    wrapped = TunerError("the part could not be built")
    wrapped.__cause__ = error
    assert is_of_machine(error)
    assert is_of_machine(wrapped)
    assert says_machine(str(error))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fault_of_a_program_is_none_of_the_machine(name: str) -> None:
    assert not is_of_machine(error_of(PROGRAMS[name]))


@pytest.mark.parametrize(
    "text",
    ["std::bad_alloc", "CUDA error 2: out of memory", "CUDA_ERROR_OUT_OF_MEMORY", "Cannot allocate memory"],
)
def test_what_is_short_of_memory_says_so_in_other_languages_too(text: str) -> None:
    assert says_machine(text)

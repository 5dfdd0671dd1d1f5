"""Errors that tell of the machine: of memory, files, tools or libraries, and nothing of a program.

TVM hands on what Python code raised as a text, without its type, so that texts decide too. An error that is
not known here counts as the program's. Checked in tests/tuner/test_machine_faults.py.
"""

from __future__ import annotations

import re

_OF_MACHINE = re.compile(
    r"No module named |cannot import name |cannot open shared object file|\[Errno \d+\]"
    r"|No space left on device|[Uu]nable to allocate|annot allocate memory|bad_alloc|(?i:out[ _]of[ _]memory)"
)
"""What the system, Python, NumPy, C++, torch and CUDA say of missing libraries, files and memory."""


def is_of_machine(error: BaseException) -> bool:
    """Say whether an error, or what caused it, tells of the machine."""
    if isinstance(error, MemoryError | ImportError | OSError) or says_machine(str(error)):
        return True
    return error.__cause__ is not None and is_of_machine(error.__cause__)


def says_machine(text: str) -> bool:
    """Say whether the text of an error tells of the machine."""
    return _OF_MACHINE.search(text) is not None

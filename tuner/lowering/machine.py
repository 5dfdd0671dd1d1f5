"""Load what was built into TVM's virtual machine.

Checked in tests/tuner/lowering/test_machine.py.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from tuner.lowering.lower import Executable

_EMPTY_SOURCE = ";"
"""What TVM puts into a C file without functions."""


def load_machine(executable: Executable, device: Any) -> relax.VirtualMachine:
    """Return the virtual machine that runs a program on a device of this process; see `library_of`."""
    return relax.VirtualMachine(library_of(executable), device)


def library_of(executable: Executable) -> Any:
    """Return a program's code as a library in this process.

    A program of nothing but packed calls comes with an empty C file, so that it can be exported. TVM would
    have a C compiler translate that, in a process of its own, and load the program from the library: here it
    is left out meanwhile, which is faster and needs no compiler.
    """
    module = executable.mod
    imports = list(module.imports)
    if not imports or any(each.kind != "c" or each.inspect_source() != _EMPTY_SOURCE for each in imports):
        return executable.jit()
    return module

"""Load what `tessel compile` saved, as what is called. Checked in tests/tessel/compiling/test_loading.py."""

from __future__ import annotations

import os

from tessel.compiling.program import Program
from tessel.compiling.program_file import read_program
from tessel.compiling.several_shapes import ShapedProgram


def load_program(path: str | os.PathLike[str]) -> Program:
    """Return the program of a file that `Program.save` wrote, ready to be called.

    Its compiled code becomes part of this process: load files only of those whose code you would run. Weights
    are mapped from the file, which must stay as it is while the program lives.

    Raises:
        UnfitProgramError: the file is none of a program, was changed, or is for another processor or other
            versions; says which.
        OSError: it cannot be read.
    """
    stored = read_program(path)
    programs = [Program(compiled, write_library=library) for compiled, library in stored.programs]
    return programs[0] if len(programs) == 1 else ShapedProgram(programs, stored.padding)

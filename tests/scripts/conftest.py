from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from document_schemas import check_printed

from scripts.main import main
from tessel.progress import messages


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    status: int
    stdout: str
    stderr: str


@pytest.fixture
def tessel(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Outcome]]:
    """Run the command as a user would, in this process; its documents are held against their schemas."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        if "--json" in arguments and captured.out:
            check_printed(arguments, captured.out)
        return Outcome(status, captured.out, captured.err)

    yield run
    messages.set_verbosity(quiet=False, verbose=False)

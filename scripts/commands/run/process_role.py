"""The part of this process in `tessel run`: all of it, or one rank of those that torchrun started.

Under torchrun every process is the same command. Each reads the plan for itself and runs its own rank; rank 0
checks the results of all, prints, and writes the files. The others print nothing unless the run fails, and
exit with the same status. Checked in tests/scripts/commands/run/test_run_nodes.py.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tessel.errors import UsageError
from tessel.jobs.running.options import Overheads, RunOptions
from tessel.jobs.running.programs import Programs
from tessel.jobs.running.subject import Subject, find_devices

if TYPE_CHECKING:
    from tessel.engine.devices import Devices
    from tessel.engine.nodes.member import Member
    from tessel.engine.nodes.team import Team
    from tessel.engine.run import RunSettings


@dataclass(frozen=True)
class ProcessRole:
    """What this process does of those that run the plan: all unless torchrun started it."""

    member: Member | None = None
    team: Team | None = None

    @property
    def is_first(self) -> bool:
        """Whether this process checks and prints."""
        return self.member is None or self.member.rank == 0

    @property
    def is_of_team(self) -> bool:
        """Whether torchrun started this process."""
        return self.member is not None

    @property
    def num_nodes(self) -> int:
        """Machines that ranks run on."""
        return 1 if self.member is None else self.member.num_nodes

    def require(self, options: RunOptions) -> None:
        """Refuse options that do not go with ranks that torchrun started.

        Raises:
            UsageError: the overheads of one machine are wanted.
        """
        if self.member is not None and options.overheads is Overheads.ANEW:
            raise UsageError(
                "--overheads anew measures the ranks of one machine, and torchrun started these; leave it out"
            )

    def require_devices(self, subject: Subject) -> None:
        """Refuse another number of ranks than devices.

        Raises:
            EngineError: torchrun started more or fewer.
        """
        if self.member is not None:
            from tessel.engine.nodes.member import require_all_devices

            require_all_devices(self.member, subject.schedule.placement.devices)

    def devices(self, subject: Subject, options: RunOptions) -> Devices:
        """Return the device of each rank; on several machines, each of this machine's ranks has the next."""
        from tessel.engine.devices import on_every_node

        if self.member is None:
            return find_devices(subject, options.device)
        here = find_devices(subject, options.device, self.member.local_world_size)
        return on_every_node(here, self.member.world_size)

    def on_all_nodes(self, plan: Path, settings: RunSettings) -> RunSettings:
        """Return the settings with what starts this process's ranks."""
        if self.member is None or self.team is None:
            return settings
        from tessel.documents import read_document
        from tessel.engine.nodes.identity import digest_of

        digest = digest_of(read_document(plan))
        return dataclasses.replace(
            settings,
            launch=functools.partial(self.team.launch, plan_digest=digest),
            ranks_here=self.member.local_world_size,
        )

    def take_part(self, plan: Path, subject: Subject, programs: Programs, settings: RunSettings) -> None:
        """Run this process's rank, and end with the status of the whole run.

        Raises:
            typer.Exit: rank 0 found wrong results, which it names.
        """
        from tessel.engine.run import take_part

        assert self.team is not None, "this process is alone and has all parts"
        settings = self.on_all_nodes(plan, settings)
        take_part(subject.schedule, programs.stages, settings=settings)
        if not self.team.await_conclusion():
            raise typer.Exit(1)

    def conclude(self, *, is_right: bool) -> None:
        """Tell the other processes what was found."""
        if self.team is not None:
            self.team.conclude(is_right=is_right)


@contextmanager
def join_team() -> Iterator[ProcessRole]:
    """Take this process's place; the others hear how it ends.

    Raises:
        EngineError: torchrun's environment makes no sense, or the others cannot be reached.
        typer.Exit: the run failed, and another process of this machine says why.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield ProcessRole()
        return
    from tessel.engine.nodes.member import find_member, find_route
    from tessel.engine.nodes.team import QuietEnd, Team

    member = find_member(os.environ)
    assert member is not None, "torchrun's variables are there"
    try:
        with Team(member, find_route(member, os.environ)) as team:
            yield ProcessRole(member, team)
    except QuietEnd as end:
        raise typer.Exit(1) from end

"""`tessel fleet status`: the machines of a fleet, and what they do."""

from __future__ import annotations

from scripts.commands.fleet.worker import SchedulerArgument, needs_fleet
from scripts.options.tuning_options import JsonOption
from scripts.terminal import console


def status(scheduler: SchedulerArgument, json: JsonOption = False) -> None:
    """Show the machines of a fleet: their devices, what waits and runs, and how much they have measured.

    Examples:

    `tessel fleet status tcp://localhost:8786`

    `tessel fleet status tcp://localhost:8786 --json`
    """
    needs_fleet()
    from tuner.fleet.status import fleet_status

    found = fleet_status(scheduler)
    if json:
        console.print_json(found)
        return
    rows = [
        [
            machine.address,
            machine.device,
            "-" if machine.num_threads is None else str(machine.num_threads),
            ", ".join(sorted(machine.backends)),
            str(machine.running),
            str(machine.queued),
            f"{machine.measured:,}",
            f"{machine.failed:,}",
            f"{machine.measured_per_minute:.1f}",
        ]
        for machine in found.machines
    ]
    columns = [
        "address",
        "device",
        "threads",
        "backends",
        "running",
        "queued",
        "measured",
        "failed",
        "a minute",
    ]
    console.print_table(f"Fleet at {found.scheduler}: {len(rows)} machines", columns, rows)

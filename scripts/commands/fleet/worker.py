"""`tessel fleet worker`: offer this machine's device to a fleet."""

from __future__ import annotations

from typing import Annotated

import typer

from scripts.options.tuning_options import BackendsOption, TargetOption, ThreadsOption
from tessel.jobs.inputs.arguments import parse_names
from tessel.progress import messages

LOOPBACK = "127.0.0.1"

SchedulerArgument = Annotated[
    str,
    typer.Argument(metavar="SCHEDULER", help="Address that `dask scheduler` prints: tcp://localhost:8786."),
]


def worker(
    scheduler: SchedulerArgument,
    target: TargetOption = "cpu",
    threads: ThreadsOption = None,
    backends: BackendsOption = None,
    host: Annotated[
        str, "Address of this machine, at which the scheduler and its workers reach it."
    ] = LOOPBACK,
) -> None:
    """Measure on this machine for a fleet, one program at a time, until Ctrl-C.

    A fleet is a Dask cluster: start `dask scheduler` on one machine, a worker on each that has a device, and
    tune with `--fleet SCHEDULER`. Whoever reaches the scheduler can run code on its workers, so both listen
    only to this machine unless told otherwise; docs/fleet.md has certificates.

    Examples:

    `tessel fleet worker tcp://localhost:8786 --threads 1`

    `tessel fleet worker tls://scheduler:8786 --host 10.0.0.7 --target cuda`
    """
    needs_fleet()
    from tuner.fleet.device_worker import WorkerSettings, check_reachable, own_identity, serve

    try:
        check_reachable(scheduler, host)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    settings = WorkerSettings(
        scheduler=scheduler, target=target, num_threads=threads, backends=parse_names(backends), host=host
    )
    found = own_identity(settings)
    device = found.environments[""]
    messages.note(
        f"{device.device_model}, {device.num_threads} threads, backends {', '.join(sorted(found.backends))}"
    )
    serve(settings, found, tell=messages.note)


def needs_fleet() -> None:
    """Refuse what needs Dask where it is not installed.

    Raises:
        TunerError: it is not.
    """
    import importlib.util

    from tuner.errors import TunerError

    if importlib.util.find_spec("distributed") is None:
        raise TunerError("a fleet needs Dask, which is not installed; install the extra `fleet`")

"""`tessel fleet server`: offer this machine's device behind TVM's RPC tracker."""

from __future__ import annotations

from typing import Annotated

import typer

from scripts.options.tuning_options import TargetOption, ThreadsOption
from tessel.progress import messages

LOOPBACK = "127.0.0.1"


def server(
    tracker: Annotated[
        str, typer.Argument(metavar="TRACKER", help="HOST:PORT at which TVM's RPC tracker listens.")
    ],
    key: Annotated[str, "Name by which tuners ask for such devices."] = "device",
    target: TargetOption = "cpu",
    threads: ThreadsOption = None,
    host: Annotated[str, "Address of this machine, at which tuners reach it."] = LOOPBACK,
) -> None:
    """Run programs for tuners that use TVM's RPC tracker, one at a time, until Ctrl-C.

    It is TVM's own RPC server, started again whenever a program has ended it, and it says which device it
    has. Tuners build, and name the device `--target rpc://TRACKER/KEY`. TVM's protocol has neither passwords
    nor encryption: whoever reaches the server can run any code on it, so it listens only to this machine
    unless told otherwise. A device without Python runs TVM's server in C++ instead.

    Examples:

    `python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port 9190`

    `tessel fleet server localhost:9190 --key board --threads 1`
    """
    from tuner.fleet.rpc_server import ServerSettings, serve, served_device
    from tuner.targets.remote import numeric_host

    name, _, port = tracker.rpartition(":")
    tracker_host = numeric_host(name)
    if not tracker_host or not port.isdecimal():
        raise typer.BadParameter(
            f"{tracker!r} is no tracker's address; give HOST:PORT, such as localhost:9190"
        )
    if tracker_host != LOOPBACK and host == LOOPBACK:
        raise typer.BadParameter(
            f"tuners that use the tracker at {tracker} could not reach a server that listens at {host}; give "
            "--host with this machine's address in a network that you trust"
        )
    device = served_device(target, num_threads=threads)
    where = device.environment
    messages.note(f"{where.device_model}, {where.num_threads} threads")
    settings = ServerSettings(
        tracker_host=tracker_host, tracker_port=int(port), key=key, host=host, device=device
    )
    serve(settings, tell=messages.note)

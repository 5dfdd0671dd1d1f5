"""`tessel backends`: which backends can run sub-graphs on a target, and why the others cannot."""

from __future__ import annotations

from typing import Annotated

import typer

from scripts.options import completion
from scripts.options.tuning_options import JsonOption
from scripts.terminal import console
from tessel.jobs.inputs.arguments import check_target
from tessel.progress import messages


def backends(
    target: Annotated[
        str,
        typer.Option(
            help="cpu, cuda or a TVM tag.", autocompletion=completion.targets, callback=check_target
        ),
    ] = "cpu",
    own: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:OBJECT",
            help="Also list your own backend, such as my_package:backend; repeatable.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the backends, with the reason if one cannot run on the target here.

    Example: `tessel backends --target cpu`.
    """
    from tuner.backends.availability import find_availability
    from tuner.targets.resolution import measuring_obstacle, resolve_target

    resolved = resolve_target(target)
    found = find_availability(resolved, own or ())
    obstacle = measuring_obstacle(resolved)
    if json:
        from scripts.documents.machines import BackendsListed

        console.print_json(BackendsListed(target=target, measuring_obstacle=obstacle, backends=found))
        return
    if obstacle is not None:
        messages.note(f"{target} cannot be measured here: {obstacle}")
    for backend in found:
        status = "ok" if backend.reason is None else "missing"
        console.print_line(f"{status:8}{backend.name:14}{backend.description}")
        versions = ", ".join(f"{name} {version}" for name, version in backend.versions)
        detail = backend.reason or versions
        if detail:
            console.print_line(f"{'':22}-> {detail}")

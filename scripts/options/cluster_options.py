"""Options of several commands about devices and links, each declared once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from scripts.options import completion
from tessel.jobs.inputs.plan_options import OPTIMIZERS
from tessel.progress.manual import manual

HopUsOption = Annotated[float, "Latency of a message between devices in us."]


def link_option(default: str = "") -> Any:
    """Return the declaration of `--link`; a default that depends on others is stated."""
    return typer.Option(
        help="Bandwidth between devices, in one direction." + (f"  [default: {default}]" if default else ""),
        show_default=not default,
    )


def optimizer_option(default: str = "") -> Any:
    """Return the declaration of `--optimizer`; the job refuses unknown names."""
    return typer.Option(
        help=f"Optimizer, whose state is kept in memory: {', '.join(OPTIMIZERS)}; "
        f"{manual('training-step.md')} has the bytes of each."
        + (f"  [default: {default}]" if default else ""),
        show_default=not default,
        autocompletion=completion.one_of(*OPTIMIZERS),
    )

"""Options of several commands about devices and links, each declared once.

Each function returns the declaration of one option, for a panel of the command's help where it has its own.
"""

from __future__ import annotations

from typing import Any

import typer

from scripts.options import completion
from tessel.jobs.inputs.plan_options import OPTIMIZERS
from tessel.progress.manual import manual


def link_option(panel: str | None = None, default: str = "") -> Any:
    """Return the declaration of `--link`; a default that depends on others is stated."""
    return typer.Option(
        help="Bandwidth between devices, in one direction." + (f"  [default: {default}]" if default else ""),
        show_default=not default,
        rich_help_panel=panel,
    )


def hop_us_option(panel: str | None = None) -> Any:
    """Return the declaration of `--hop-us`; the job refuses what is no latency."""
    return typer.Option(help="Latency of a message between devices in us.", rich_help_panel=panel)


def optimizer_option(panel: str | None = None, default: str = "") -> Any:
    """Return the declaration of `--optimizer`; the job refuses unknown names."""
    return typer.Option(
        help=f"Optimizer, whose state is kept in memory: {', '.join(OPTIMIZERS)}; "
        f"{manual('training-step.md')} has the bytes of each."
        + (f"  [default: {default}]" if default else ""),
        show_default=not default,
        rich_help_panel=panel,
        autocompletion=completion.one_of(*OPTIMIZERS),
    )

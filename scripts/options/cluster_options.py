"""Options of several commands about devices and links, each declared once.

Each function returns the declaration of one option, for a panel of the command's help where it has its own.
"""

from __future__ import annotations

from typing import Any

import typer

from scripts.options import completion
from scripts.options.arguments import check_choice

OPTIMIZERS = ("none", "sgd", "momentum", "adam", "adam-mixed")
"""As `tessel.planning.cluster.OPTIMIZERS`, which loads more than a completion may. Checked in
tests/scripts/commands/test_plan.py."""

DEFAULT_LINK = "100GB/s"
DEFAULT_HOP_US = 10.0
DEFAULT_OPTIMIZER = "adam"


def link_option(panel: str | None = None) -> Any:
    """Return the declaration of `--link`."""
    return typer.Option(help="Bandwidth between devices, in one direction.", rich_help_panel=panel)


def hop_us_option(panel: str | None = None) -> Any:
    """Return the declaration of `--hop-us`; `check_hop_us` refuses what is no latency."""
    return typer.Option(help="Latency of a message between devices in us.", rich_help_panel=panel)


def optimizer_option(panel: str | None = None) -> Any:
    """Return the declaration of `--optimizer`, which refuses unknown names."""
    return typer.Option(
        help=f"Optimizer, whose state is kept in memory: {', '.join(OPTIMIZERS)}.",
        rich_help_panel=panel,
        autocompletion=completion.one_of(*OPTIMIZERS),
        callback=_check_optimizer,
    )


def _check_optimizer(text: str) -> str:
    return check_choice("--optimizer", text, OPTIMIZERS)


def check_hop_us(hop_us: float) -> None:
    """Refuse a latency that is none.

    Raises:
        typer.BadParameter: it is negative or not finite.
    """
    if not 0 <= hop_us < 1e9:
        raise typer.BadParameter(f"--hop-us is {hop_us:g}; give microseconds of at least 0")

"""The options of commands that draw."""

from __future__ import annotations

import typer
from typer.models import OptionInfo

from tessel.progress.manual import manual

_WIDTH_HELP = (
    "Width of a picture: column or page (3.33 and 7 inches: one and both columns of print), screen, or "
    "inches such as 5.5in."
)
_STYLE_HELP = f"JSON file with the looks of what a picture is made of ({manual('pictures.md')})."


def width_option(panel: str | None = None) -> OptionInfo:
    """Return the option `--width` of a command that draws."""
    found: OptionInfo = typer.Option(help=_WIDTH_HELP, rich_help_panel=panel)
    return found


def style_option(panel: str | None = None) -> OptionInfo:
    """Return the option `--style` of a command that draws."""
    found: OptionInfo = typer.Option(metavar="FILE", help=_STYLE_HELP, rich_help_panel=panel)
    return found

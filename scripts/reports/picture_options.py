"""The options of commands that draw."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tessel.progress.manual import manual

WidthOption = Annotated[
    str | None,
    "Width of a picture: column or page (3.33 and 7 inches: one and both columns of print), screen, or "
    "inches such as 5.5in; as for a screen if left out.",
]
StyleOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=f"JSON file with the looks of what a picture is made of, such as style.json "
        f"({manual('pictures.md')}); the usual ones if left out.",
    ),
]

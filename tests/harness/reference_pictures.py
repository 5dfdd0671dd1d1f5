"""Whole pictures against stored ones, with a tolerance: for what no list of bars says, such as how it looks.

Both are made small and a little blurred, so that another smoothing of letters, or an edge that falls half a
pixel aside, costs little; what is left is compared window by window, so that one bar of another colour, or at
another place, counts as much in a large picture as in a small one. The stored pictures are written again by

    TESSEL_WRITE_PICTURES=1 pytest tests/tessel/picture -k stored

and are then to be looked at, in tests/samples/pictures. Checked in
tests/tessel/picture/test_reference_pictures.py.
"""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

WRITE = "TESSEL_WRITE_PICTURES"
"""Environment variable; where it is set, pictures are stored instead of compared."""

FOLDER = Path(__file__).parents[1] / "samples" / "pictures"

WIDTH = 480
"""Pixels of a stored picture: 5 to 20 KB, and a bar of a fiftieth of the width is still ten pixels."""

WINDOW = 6
"""Pixels of the side of a window: about a bar's height in a picture of sixteen rows."""

TOLERANCE = 24.0
"""Most mean difference of a window, of 255. In a picture of 76 steps, a bar that is off by a tenth of a step,
a third of a pixel, makes 18, by half a step 77, and one of another kind's colour 69."""

_BLUR = 1.2


def shrunk(png: bytes) -> Image.Image:
    """Return a picture on white, WIDTH pixels wide."""
    found = Image.open(BytesIO(png)).convert("RGBA")
    white = Image.new("RGBA", found.size, "white")
    whole = Image.alpha_composite(white, found).convert("RGB")
    return whole.resize((WIDTH, max(round(whole.height * WIDTH / whole.width), 1)), Image.Resampling.BOX)


def largest_difference(one: Image.Image, other: Image.Image) -> float:
    """Return the mean difference, 0 to 255, of the window that differs most; 255 where the sizes do."""
    if one.size != other.size:
        return 255.0
    gap = np.abs(_blurred(one) - _blurred(other)).max(axis=2)
    padded = np.pad(gap, ((0, -gap.shape[0] % WINDOW), (0, -gap.shape[1] % WINDOW)))
    rows, columns = (side // WINDOW for side in padded.shape)
    windows = padded.reshape(rows, WINDOW, columns, WINDOW).mean(axis=(1, 3))
    return float(windows.max())


def assert_like_stored(name: str, png: bytes, folder: Path) -> None:
    """Compare a picture with the stored one of that name, or store it where the reader asks for it.

    Args:
        name: of the stored picture, without suffix.
        png: the picture.
        folder: where it is written if it differs, to be looked at.
    """
    found, path = shrunk(png), FOLDER / f"{name}.png"
    if os.environ.get(WRITE):
        found.quantize(256).save(path, optimize=True)
    difference = largest_difference(found, Image.open(path).convert("RGB"))
    if difference > TOLERANCE:
        found.save(folder / f"{name}.png")
    assert difference <= TOLERANCE, (
        f"{name} differs from {path} by {difference:.0f} of 255 in a window; look at {folder / name}.png, "
        f"and if it is right, store it with {WRITE}=1"
    )


def _blurred(picture: Image.Image) -> npt.NDArray[np.float64]:
    return np.asarray(picture.filter(ImageFilter.GaussianBlur(_BLUR)), dtype=np.float64)

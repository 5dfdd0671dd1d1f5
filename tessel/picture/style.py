"""Style of a picture that is to look otherwise, and the JSON file that holds one.

    {"schema_version": 1,
     "annotation_args": {"fontsize": 6},
     "rectangle_args": {"forward": {"facecolor": "#88CCEE"}, "backward": {"hatch": "//"}},
     "line_args": {"color": "black", "linewidth": 1}}

The three keys are those of René's visualizer, as `draw_schedule` takes them; `draw_frontier`, `draw_gains`
and `draw_partition` take what of them they have, bars by schedule and boxes by backend. Of matplotlib's
properties a file may give only those of looks: none of them opens a file, runs code or places a link. From
Python, `draw_schedule` takes every property there is. Checked in tests/tessel/picture/test_style.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from matplotlib.artist import Artist
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.text import Text

from tessel.documents import read_document
from tessel.errors import DocumentError
from tessel.picture.draw import ArtistArgs
from tessel.progress.manual import manual

_Alpha = float | msgspec.UnsetType
_Words = str | msgspec.UnsetType
_Size = float | msgspec.UnsetType


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureStyle:
    """Properties of a picture's artists, over the ones used otherwise; see `draw_schedule`."""

    annotation_args: ArtistArgs = field(default_factory=dict)
    rectangle_args: Mapping[str, ArtistArgs] = field(default_factory=dict)
    line_args: ArtistArgs = field(default_factory=dict)


class _AnnotationArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    color: _Words = msgspec.UNSET
    fontsize: _Size = msgspec.UNSET
    fontfamily: _Words = msgspec.UNSET
    fontweight: _Words = msgspec.UNSET
    fontstyle: _Words = msgspec.UNSET
    alpha: _Alpha = msgspec.UNSET


class _RectangleArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    facecolor: _Words = msgspec.UNSET
    edgecolor: _Words = msgspec.UNSET
    linewidth: _Size = msgspec.UNSET
    linestyle: _Words = msgspec.UNSET
    hatch: _Words = msgspec.UNSET
    alpha: _Alpha = msgspec.UNSET


class _LineArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    color: _Words = msgspec.UNSET
    linewidth: _Size = msgspec.UNSET
    linestyle: _Words = msgspec.UNSET
    alpha: _Alpha = msgspec.UNSET


class _StyleFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    schema_version: Literal[1]
    annotation_args: _AnnotationArgs = _AnnotationArgs()
    rectangle_args: dict[str, _RectangleArgs] = msgspec.field(default_factory=dict)
    line_args: _LineArgs = _LineArgs()


def load_style(path: str | os.PathLike[str]) -> PictureStyle:
    """Return the style that a file holds.

    Raises:
        DocumentError: the file cannot be read, or has a key or a value that no style has.
    """
    try:
        found = msgspec.json.decode(read_document(path), type=_StyleFile)
    except msgspec.ValidationError as error:
        raise DocumentError(
            f"{path}: {error}; see {manual('pictures.md')} for what a style may say"
        ) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise DocumentError(f"{path} is not whole JSON, {error}; write it again") from error
    return PictureStyle(
        annotation_args=_checked(found.annotation_args, Text(), f"{path}: annotation_args"),
        rectangle_args={
            kind: _checked(args, PolyCollection([]), f"{path}: rectangle_args of {kind}")
            for kind, args in found.rectangle_args.items()
        },
        line_args=_checked(found.line_args, Line2D([], []), f"{path}: line_args"),
    )


def _checked(args: msgspec.Struct, artist: Artist, place: str) -> dict[str, object]:
    """Return what is given, after trying it on an artist that is not drawn."""
    given = {
        name: value for name in args.__struct_fields__ if (value := getattr(args, name)) is not msgspec.UNSET
    }
    for name, value in given.items():
        try:
            artist.set(**{name: value})
        except (ValueError, TypeError) as error:
            raise DocumentError(
                f"{place} has {name} {value!r}, which matplotlib refuses ({error}); give another"
            ) from error
    return given

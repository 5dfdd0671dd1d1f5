"""Say where in the user's own source an operator of an exported program comes from.

`torch.export` notes the Python frames of each call; the innermost that is not torch's own is the line that a
person wrote. Checked in tests/tuner/frontend/torch/test_source.py.
"""

from __future__ import annotations

import os
import re
import traceback
from pathlib import Path
from typing import Any

import torch

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in [^\n]*(?:\n +([^\n]+))?')
_TORCH = Path(str(torch.__file__)).parent
_TUNER = Path(__file__).parents[2]
_PYTHON = Path(traceback.__file__).parent
_MAX_CODE = 80


def place_of(node: Any) -> str:
    """Return the operator of a node, the line of source and the layer that it comes from, as far as known.

    Such as "operator cumsum.default (`mask.cumsum(-1)` at model.py:12, layer h.0)".
    """
    layer = layer_of(node)
    known = [*filter(None, (source_of(node), f"layer {layer}" if layer else ""))]
    return f"operator {name_of(node)} ({', '.join(known) or node.name})"


def name_of(node: Any) -> str:
    """Return the name of a node's operator and overload, with its namespace where that is not ATen's."""
    target = node.target
    name = str(getattr(target, "__name__", target))
    namespace = getattr(target, "namespace", "aten")
    return name if namespace in ("aten", "prims") else f"{namespace}::{name}"


def layer_of(node: Any) -> str:
    """Return the path of the innermost module that a node was traced in; empty outside of any."""
    stack = node.meta.get("nn_module_stack") or {}
    # Values are (path, type); modules called twice are traced as `path@1`.
    return str(list(stack.values())[-1][0]).split("@")[0] if stack else ""


def source_of(node: Any) -> str:
    """Return a node's line of source, such as "`x.cumsum(-1)` at model.py:12"; empty if it is not known."""
    frames = _FRAME.findall(str(node.meta.get("stack_trace") or ""))
    own = [frame for frame in frames if _TORCH not in Path(frame[0]).parents]
    if not own:
        return ""
    return _place(*own[-1])


def raised_at(error: BaseException) -> str:
    """Return the line that an error of a trace came from, as `source_of` does; empty if it is nobody's own.

    Tracing runs the module, so that the innermost frame of a person's code is what torch could not trace.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_machinery(Path(frame.filename))]
    if not own:
        return raised_at(error.__cause__) if error.__cause__ is not None else ""
    return _place(own[-1].filename, str(own[-1].lineno), own[-1].line or "")


def _is_machinery(path: Path) -> bool:
    """Say whether a file is torch's, this program's or Python's own, or none."""
    if not path.is_file() or _TORCH in path.parents or _TUNER in path.parents:
        return True
    return _PYTHON in path.parents and "site-packages" not in path.parts


def _place(file: str, line: str, code: str) -> str:
    shown = code if len(code) <= _MAX_CODE else code[:_MAX_CODE] + "…"
    place = f"{_short(file)}:{line}"
    return f"`{shown}` at {place}" if shown else place


def _short(file: str) -> str:
    """Return a path as a person would name it: from the working folder, or from where packages lie."""
    path = Path(file)
    if "site-packages" in path.parts:
        return str(Path(*path.parts[path.parts.index("site-packages") + 1 :]))
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative

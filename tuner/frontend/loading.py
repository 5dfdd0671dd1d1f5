"""Turn what a user calls a model into a `Model`: a name of the zoo, a file, or a torch module.

Checked in tests/tuner/frontend/test_loading.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from tuner.errors import UnknownNameError
from tuner.frontend.model import Model
from tuner.frontend.zoo import MODELS


def load_model(
    spec: str,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    batch: int = 1,
    training: bool = False,
) -> Model:
    """Return the model that a specification names.

    Args:
        spec: `NAME` or `NAME:SIZE` of the zoo, such as `gpt2` or `bert:tiny`.
        shapes: static shapes by name of input, instead of the model's own.
        batch: examples at once, for models of the zoo; `shapes` overrides it.
        training: whether the model takes labels and returns its loss, a scalar.

    Raises:
        UnknownNameError: no model, size or input has that name.
        ValueError: a shape does not fit the model, or the batch is below one.
    """
    if batch < 1:
        raise ValueError(f"batch is {batch}, but a model needs at least one example; give 1 or more")
    name, _, size = spec.partition(":")
    if name not in MODELS:
        raise UnknownNameError(_unknown(f"model {spec!r}", name, MODELS, "a file .onnx or .pt2"))
    model = MODELS[name]
    if size and size not in model.sizes:
        raise UnknownNameError(_unknown(f"size {size!r} of {name}", size, model.sizes))
    return model.load(size or model.default_size, shapes=shapes or {}, batch=batch, training=training)


def _unknown(what: str, name: str, known: Mapping[str, object] | tuple[str, ...], also: str = "") -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no {what}; {hint}give one of {', '.join(known)}{', or ' if also else ''}{also}"

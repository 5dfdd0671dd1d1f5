"""Load a `Model` from its command-line name: a model of the zoo, a file, or a torch module.

Checked in tests/tuner/frontend/test_loading.py.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from tuner.errors import TunerError, UnknownNameError
from tuner.frontend.loss import with_loss
from tuner.frontend.model import Model
from tuner.frontend.shapes import Scalar
from tuner.frontend.zoo import MODELS


def load_model(
    spec: str,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Mapping[str, Scalar] | None = None,
    batch: int = 1,
    training: bool = False,
    guarded: bool = True,
) -> Model:
    """Return the model that a specification names.

    Args:
        spec: `NAME` or `NAME:SIZE` of the zoo, such as `gpt2` or `resnet:50` (the colon may be left out); a
            file `.onnx` or `.pt2`; or `module:function` (or `file.py:function`) of a function that returns a
            torch module and a tuple of example inputs. The last runs that code.
        shapes: static shapes by name of input, instead of the model's own.
        values: of inputs of an ONNX file that become constants, by name, for each of their elements.
        batch: examples at once, for models of the zoo alone; `shapes` overrides it.
        training: whether the model takes labels and returns its loss, a scalar. A file or a torch module that
            returns logits gets the mean cross-entropy as its loss.
        guarded: whether a file is first tried in a child process with limits (see `sandbox`). A process that
            opens what another has already tried may leave it out.

    Raises:
        ModelFileError: a file cannot be read, or is not what its name says.
        TunerError: an extra is needed that is not installed.
        UnknownNameError: no model, size or input has that name.
        UnsupportedOperatorError: an importer has no such operator, or a model that is to be trained has a
            backward of its own, which its import would lose.
        ValueError: a shape or value does not fit the model, values are given for what is no ONNX file, the
            batch is below one or given for a file, or a model that is to be trained returns neither a loss
            nor logits.
    """
    if batch < 1:
        raise ValueError(f"batch is {batch}, but a model needs at least one example; give 1 or more")
    if values and Path(spec).suffix != ".onnx":
        raise ValueError(
            f"the value of input {next(iter(values))!r} is given, but only inputs of ONNX files can be fixed "
            f"and {spec} is none; leave the value out"
        )
    name, _, detail = _with_colon(spec).partition(":")
    if name in MODELS:
        return _load_from_zoo(name, detail, shapes=shapes or {}, batch=batch, training=training)
    model = _load_imported(spec, shapes or {}, values or {}, guarded=guarded, training=training)
    if names_file(spec):  # A plan must find the file again.
        model = replace(model, name=spec)
    if batch != 1:
        names = ", ".join(item.name for item in model.inputs)
        raise ValueError(
            f"batch is {batch}, but only models of the zoo know which extent that is; give {spec} the shapes "
            f"of its inputs instead, as --shape NAME=EXTENT,… for {names}"
        )
    return for_training(model) if training else model


def for_training(model: Model) -> Model:
    """Return the model with a loss; its reference is the module as it trains, where that can be tuned."""
    if model.reference is None:
        return with_loss(model)
    stateless = model.reference.without_state(model)
    assert stateless.reference is not None
    kept = stateless.reference.with_own_backwards(stateless)
    assert kept.reference is not None
    dropping = kept.reference.with_train_mode(kept)
    assert dropping.reference is not None
    trained = with_loss(dropping.reference.with_blocked_gradients(dropping))
    assert trained.reference is not None
    reference, notes = trained.reference.prepare_training()
    return replace(trained, reference=reference, notes=(*trained.notes, *notes))


def with_torch_calls(model: Model, operators: Sequence[str]) -> Model:
    """Return the model imported again with these operators of its own program as calls of torch.

    Args:
        model: as it was loaded, for training or not.
        operators: their names in the program.

    Raises:
        UnsupportedOperatorError: one of them cannot be a call.
    """
    if model.reference is None or not operators:
        return model
    imported = model.reference.with_calls(model, operators)
    return for_training(imported) if model.training else imported


_MODEL_FILES = (".onnx", ".pt2")
"""Suffixes of the files that hold a model; opening one runs no code that stands in it."""


def names_file(spec: str) -> bool:
    """Whether a specification is the path of a file that holds a model."""
    return Path(spec).suffix in _MODEL_FILES


def is_code(spec: str) -> bool:
    """Whether loading a specification runs Python code that it names, as `module:function` does."""
    name = _with_colon(spec).partition(":")[0]
    return ":" in spec and name not in MODELS and not names_file(spec)


def require_trust(spec: str, *, trusted: bool) -> None:
    """Refuse code that a document names as its model, unless the user has named or trusted it too.

    Raises:
        TunerError: the specification names code, and is not trusted.
    """
    if is_code(spec) and not trusted:
        raise TunerError(
            f"the plan names the Python code {spec!r} as its model, and running the plan would run that "
            "code; name it too, or say that you trust the plan (`tessel run --trust-model`)"
        )


def _with_colon(spec: str) -> str:
    """Return `resnet:50` for `resnet50`, as people write it; other specifications as they are."""
    for name, model in MODELS.items():
        size = spec.removeprefix(name)
        if size != spec and size in model.SIZES:
            return f"{name}:{size}"
    return spec


def _load_from_zoo(
    name: str, size: str, *, shapes: Mapping[str, tuple[int, ...]], batch: int, training: bool
) -> Model:
    model = MODELS[name]
    if size and size not in model.SIZES:
        raise UnknownNameError(
            f"there is no size {size!r} of {name}; {_near(size, model.SIZES)}give one of "
            f"{', '.join(model.SIZES)}"
        )
    return model.load(size or model.DEFAULT_SIZE, shapes=shapes, batch=batch, training=training)


def _load_imported(
    spec: str,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Scalar],
    *,
    guarded: bool,
    training: bool,
) -> Model:
    path = Path(spec)
    if path.suffix == ".onnx":
        model: Model = _importer("onnx").load_onnx(
            path, shapes=shapes, values=values, guarded=guarded, training=training
        )
    elif path.suffix == ".pt2":
        model = _importer("torch").load_exported(path, shapes=shapes, guarded=guarded)
    elif ":" in spec and _may_be_python(spec.rpartition(":")[0]):
        location, _, function = spec.rpartition(":")
        model = _importer("torch").load_function(location, function, shapes=shapes)
    else:
        name = spec.partition(":")[0]
        raise UnknownNameError(
            f"there is no model {spec!r}; {_near(name, MODELS)}give one of {', '.join(MODELS)}, a file "
            ".onnx or .pt2, or module:function of a torch module"
        )
    return model


_MODULES = {"onnx": "tuner.frontend.onnx.file", "torch": "tuner.frontend.torch.program"}


def _importer(extra: str) -> ModuleType:
    """Return the module of an importer, whose package is an optional extra."""
    try:
        return importlib.import_module(_MODULES[extra])
    except ModuleNotFoundError as error:
        if error.name != extra:
            raise
        raise TunerError(
            f"this model needs the package {extra!r}, which is not installed; install it with "
            f"pip install 'tessel-tuner[{extra}]'"
        ) from error


def _may_be_python(location: str) -> bool:
    """Return whether text before a colon may name Python code, not a misspelt name of the zoo."""
    if location.endswith(".py"):
        return True
    top = location.partition(".")[0]
    is_here = Path(top).is_dir() or Path(f"{top}.py").is_file()
    return top.isidentifier() and (is_here or importlib.util.find_spec(top) is not None)


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""

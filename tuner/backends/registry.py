"""The registry of backends, and how they are named on the command line.

A reference is a registered name (`blas`), a name with settings (`metaschedule?trials=64`), or `module:object`
for a custom backend, which needs no entry here; a backend that was renamed is known by its old name too
(`records.backend_names`). Every process makes its backends from references, so that a worker runs the same
code as the one who asked. Checked in tests/tuner/backends/test_registry.py.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from urllib.parse import parse_qsl

from records.backend_names import current_name
from tuner.backends.blas import Blas
from tuner.backends.cpu.attention import Attention
from tuner.backends.cpu.nhwc import Nhwc
from tuner.backends.cpu.packed_matmul import PackedMatmul
from tuner.backends.metaschedule.backend import MetaSchedule
from tuner.backends.onnxruntime.library import OnnxRuntime
from tuner.backends.protocol import Backend
from tuner.backends.torch.library import TorchLibrary
from tuner.backends.tvm.codegen import TvmCodegen
from tuner.backends.tvm.native import TvmNative
from tuner.errors import TunerError, UnknownNameError
from tuner.targets.target import Target

_MAKERS: Mapping[str, Callable[..., Backend]] = MappingProxyType(
    {
        "tvm": TvmNative,
        "blas": Blas,
        "torch": TorchLibrary,
        "onnxruntime": OnnxRuntime,
        "packed_matmul": PackedMatmul,
        "attention": Attention,
        "nhwc": Nhwc,
        "metaschedule": MetaSchedule,
        "cublas": partial(TvmCodegen, "cublas", "cuda"),
        "cudnn": partial(TvmCodegen, "cudnn", "cuda"),
        "cutlass": partial(TvmCodegen, "cutlass", "cuda"),
        "tensorrt": partial(TvmCodegen, "tensorrt", "cuda"),
        "dnnl": partial(TvmCodegen, "dnnl", "cpu"),
    }
)

_RETIRED: Mapping[str, str] = MappingProxyType(
    {"winograd": "its kernels run as part of nhwc, which is faster; give nhwc"}
)


def backend_names() -> tuple[str, ...]:
    """Return the registered names, the reference backend first."""
    return tuple(_MAKERS)


def backends_for(references: Iterable[str] | None, target: Target) -> tuple[Backend, ...]:
    """Return the backends that the references name, in order.

    Args:
        references: names with or without settings, or `module:object`; every one that can run if None.
        target: what they must be able to run on.

    Raises:
        UnknownNameError: no such backend; the message lists those there are.
        TunerError: the backend exists but cannot run on the target here.
        ValueError: a setting is unknown, empty or not a number, or two backends share a name.
    """
    if references is None:
        return available_backends(target)
    backends = tuple(make_backend(reference) for reference in references)
    for backend in backends:
        reason = backend.unavailable_reason(target)
        if reason is not None:
            raise TunerError(
                f"backend {backend.name!r} cannot run on target {target.name!r}: {reason}; leave it out, or "
                "see `tessel backends` for those that can"
            )
    names = [backend.name for backend in backends]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(
            f"backend {doubled[0]!r} is given twice, so records could not tell them apart; give it once"
        )
    return backends


def available_backends(target: Target) -> tuple[Backend, ...]:
    """Return every registered backend that can run on the target with this installation."""
    made = (make_backend(name) for name in _MAKERS)
    return tuple(backend for backend in made if backend.unavailable_reason(target) is None)


def make_backend(reference: str) -> Backend:
    """Return the backend that a reference names, whether it can run here or not.

    Raises:
        UnknownNameError: no such backend.
        ValueError: a setting is unknown, empty or not a number.
    """
    name, _, settings = reference.partition("?")
    if ":" in name:
        return _import_backend(name)
    name = current_name(name)
    if name in _RETIRED:
        raise UnknownNameError(f"backend {name!r} is no more: {_RETIRED[name]}")
    if name not in _MAKERS:
        near = difflib.get_close_matches(name, _MAKERS, n=1)
        hint = f"did you mean {near[0]!r}? There are" if near else "there are"
        raise UnknownNameError(
            f"backend {name!r} is not known; {hint} {', '.join(_MAKERS)}, or give module:object"
        )
    return _MAKERS[name](**_arguments(reference, settings, inspect.signature(_MAKERS[name])))


def _arguments(reference: str, settings: str, signature: inspect.Signature) -> dict[str, int | str]:
    """Return `a=1&b=text` as arguments, numbers where the default is one."""
    arguments: dict[str, int | str] = {}
    for name, value in parse_qsl(settings, keep_blank_values=True):
        if name not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            raise ValueError(f"backend {reference!r} has no setting {name!r}; it has {known}")
        is_number = isinstance(signature.parameters[name].default, int)
        if not value or (is_number and not value.isdigit()):
            raise ValueError(
                f"backend {reference!r} has {value!r} for the setting {name!r}; write {name}="
                f"{'NUMBER' if is_number else 'TEXT'}"
            )
        arguments[name] = int(value) if is_number else value
    return arguments


def _import_backend(reference: str) -> Backend:
    module_name, _, attribute = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UnknownNameError(
            f"backend {reference!r} cannot be imported ({error}); give module:object, with the module on the "
            "Python path"
        ) from error
    backend: Backend = found() if isinstance(found, type) else found
    return backend

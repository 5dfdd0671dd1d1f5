"""Load a torch program: an exported file, or a module returned by a user's function.

Opening a file runs no code that stands in it: see `exported_program` and `sandbox`. A function of one's own
is code, and naming it runs it. Modules are exported for inference and for the shapes of their example inputs.
What torch says while it exports is kept back: what went wrong comes as an error, whose reason is sought in
the module first, since what torch says of a scripted, quantised or empty module is about its own parts.
Checked in tests/tuner/frontend/torch/test_program.py.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils import _pytree as pytree

from tuner.errors import ModelFileError, UnknownNameError, UnsupportedOperatorError
from tuner.frontend.model import Model
from tuner.frontend.pipeline_marks import marked_cuts
from tuner.frontend.sandbox import try_import
from tuner.frontend.torch.decomposition import decompose, require_shapes
from tuner.frontend.torch.export import argument_names, export_module, quiet_export, with_plain_results
from tuner.frontend.torch.exported.exported_program import load_program
from tuner.frontend.torch.importer import import_program
from tuner.frontend.torch.reference import TorchReference
from tuner.frontend.torch.source import raised_at
from tuner.frontend.torch.training import in_mode

_CHANGED_CONSTANT = re.compile(r"Constant (\S+) is mutated in the forward method")
"""What torch says of a tensor in a module that is neither a weight nor a buffer, and is changed in place."""

_UNCOMPARED = "the program takes inputs by keyword, so its import is not compared with torch"


_LEFT_OUT = (
    "results of type {} are left out: a model gives tensors, alone or in tuples, lists, dicts and dataclasses"
)


def load_exported(path: Path, *, shapes: Mapping[str, tuple[int, ...]], guarded: bool = True) -> Model:
    """Return the model of a file that `torch.export.save` wrote. No code that stands in it is run.

    Args:
        shapes: static shapes by name of input.
        guarded: whether it is first tried in a child process with limits.

    Raises:
        ModelFileError: the file is missing, or holds no exported program, or breaks a limit.
        UnsupportedOperatorError: the importer has no such operator.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror or error}; check the path") from error
    if guarded:
        try_import(f"{__name__}:import_exported", content, path, shapes=dict(shapes))
    return import_exported(content, path, shapes=shapes)


def import_exported(content: bytes, path: Path, *, shapes: Mapping[str, tuple[int, ...]]) -> Model:
    """Return the model of bytes that `torch.export.save` wrote; arguments and errors of `load_exported`."""
    try:
        with quiet_export():
            program = load_program(content)
    except UnsupportedOperatorError as error:
        raise UnsupportedOperatorError(f"{path}: {error}") from error
    except Exception as error:  # torch raises what the archive and its parts happen to raise
        raise ModelFileError(
            f"{path} is not an exported torch program ({_first_line(error)}); write it with "
            "torch.export.save, with this version of torch"
        ) from error
    return import_export(program, path.name, shapes=shapes)


def import_export(
    program: torch.export.ExportedProgram, name: str, *, shapes: Mapping[str, tuple[int, ...]]
) -> Model:
    """Return the model of an exported program; errors of `import_module`."""
    decomposed = _decomposed(program, name, shapes)
    model = import_program(decomposed, name)
    arguments, keywords = _example_inputs(program)
    if keywords:
        return replace(model, notes=(*model.notes, _UNCOMPARED))
    return _with_reference(
        model,
        TorchReference(
            module=program.module(check_guards=False),
            examples=arguments,
            program=decomposed,
            mode="export",
        ),
    )


def _example_inputs(program: torch.export.ExportedProgram) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs of the program's shapes, all zeros: those that a file holds are not read."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    leaves = [
        torch.zeros([_extent(extent) for extent in value.shape], dtype=value.dtype)
        if isinstance(value := nodes[spec.arg.name].meta.get("val"), torch.Tensor)
        else getattr(spec.arg, "value", value)
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
    arguments, keywords = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return tuple(arguments), dict(keywords)


def _extent(extent: int | torch.SymInt) -> int:
    """Return a number for an extent; any number for an open one."""
    return extent if isinstance(extent, int) else 2


def warm_up() -> None:
    """Import what torch imports only when it first exports a program: for the server of `sandbox`."""
    import_module(torch.nn.Linear(1, 1), (torch.zeros(1, 1),), "warm-up")


def load_function(location: str, function: str, *, shapes: Mapping[str, tuple[int, ...]]) -> Model:
    """Return the model of a function that returns a torch module and example inputs.

    This runs the user's own code, as importing it in Python would.

    Args:
        location: an importable module, such as `package.module`, or a path `folder/file.py`.
        function: its name; it takes nothing and returns `(module, inputs)`.

    Raises:
        ModelFileError: the function does not return a torch module and a sequence of tensors.
        UnknownNameError: there is no such module or function.
        UnsupportedOperatorError: the importer has no such operator, or torch cannot export the module.
    """
    module, inputs = build_torch_module(location, function)
    return import_module(module, inputs, f"{location}:{function}", shapes=shapes)


def build_torch_module(
    location: str, function: str, *, seed: int = 0
) -> tuple[torch.nn.Module, Sequence[torch.Tensor]]:
    """Return the torch module and the example inputs that a user's function makes.

    This runs the user's own code; arguments are those of `load_function`. The seed is torch's while it runs.

    Raises:
        ModelFileError: the function fails, or does not return a torch module and a sequence of tensors.
        UnknownNameError: there is no such module or function.
    """
    name = f"{location}:{function}"
    build = getattr(_load_python(location), function, None)
    if not callable(build):
        raise UnknownNameError(
            f"{location} has no function {function!r}; name one that returns (module, inputs)"
        )
    try:
        # Weights that the function draws are the same in every process and on every day.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            built = build()
    except Exception as error:  # foreign code: the user's own function
        raise ModelFileError(
            f"{name} failed ({_first_line(error)}); it must take nothing and return a torch module and a "
            "tuple of example inputs"
        ) from error
    if not (isinstance(built, tuple) and len(built) == 2 and isinstance(built[0], torch.nn.Module)):
        raise ModelFileError(
            f"{name} returned {type(built).__name__}, but it must return a torch module and a tuple of "
            "example inputs"
        )
    module, given = built
    with_plain_results(module)
    return module, by_position(module, given, name)


def by_position(module: torch.nn.Module, given: Any, name: str) -> tuple[Any, ...]:
    """Return example inputs by position: of one tensor, of a sequence, or by names of the forward.

    Raises:
        ModelFileError: they are nothing of these, or have names that no position belongs to.
    """
    if isinstance(given, torch.Tensor):
        return (given,)
    if isinstance(given, list | tuple):
        return tuple(given)
    if not isinstance(given, Mapping):
        raise ModelFileError(
            f"{name} returned example inputs of type {type(given).__name__}, but a module takes tensors; "
            "return a tuple of them, or a dict by the names of its forward"
        )
    known = {
        each.name: each.default
        for each in inspect.signature(module.forward).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    }
    unknown = [str(key) for key in given if key not in known]
    names = list(known)[: max([list(known).index(key) + 1 for key in given if key in known], default=0)]
    missing = [each for each in names if each not in given and known[each] is inspect.Parameter.empty]
    if unknown:
        raise ModelFileError(
            f"{name} returned example inputs by name, but the module's forward has no position for "
            f"{unknown[0]!r}; name those of {', '.join(known)}"
        )
    if missing:
        raise ModelFileError(
            f"{name} returned example inputs by name without {missing[0]!r}, which the module needs; add it"
        )
    return tuple(given.get(each, known[each]) for each in names)


def with_defaults(module: torch.nn.Module, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return inputs by position, completed by the defaults of the forward, so that a call may name them."""
    accepted = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(module.forward).parameters.values()
    defaults = [each.default for each in parameters if each.kind in accepted][len(inputs) :]
    plain = (bool, int, float, str)
    known = itertools.takewhile(lambda value: value is None or isinstance(value, plain), defaults)
    return (*inputs, *known)


def import_module(
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    name: str,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Model:
    """Return the model of a torch module, exported for the shapes of its example inputs and for inference.

    An input that another shape is given for is its example repeated or cut along each axis, so that whole
    numbers and masks stay such as the module takes.

    Sub-modules that `cut_pipeline_stage` marked are its cuts. Dropout is left out and batch normalisation
    uses its running statistics, as `module.eval()` has it; `for_training` puts both back.

    Raises:
        UnsupportedOperatorError: the importer has no such operator, or torch cannot export the module.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedOperatorError(
            f"{name} is a TorchScript module, which torch.export does not take; give the module that it was "
            "made from, or an ONNX file of it"
        )
    inputs = _with_shapes(module, inputs, shapes or {})
    was_training = module.training
    results = with_plain_results(module)
    try:
        with quiet_export():
            program = export_module(module.eval(), inputs)
    except Exception as error:  # foreign code: torch traces the module by running it
        raise UnsupportedOperatorError(
            f"torch.export cannot trace {name}: {_explain(module, inputs, error)}"
        ) from error
    finally:
        module.train(was_training)
    program = _decomposed(program, name, shapes or {})
    model = _with_reference(
        import_program(program, name),
        TorchReference(module=module, examples=tuple(inputs), program=program),
    )
    notes = (_LEFT_OUT.format(", ".join(sorted(results.left_out))),) if results.left_out else ()
    return replace(model, cuts=marked_cuts(module), notes=(*model.notes, *notes))


def _with_shapes(
    module: torch.nn.Module, inputs: Sequence[Any], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Any, ...]:
    """Return the inputs in the shapes given by name; what does not fit is left for `require_shapes`."""
    return tuple(
        _resized(value, shapes[name])
        if name in shapes and isinstance(value, torch.Tensor) and value.dim() == len(shapes[name])
        else value
        for name, value in zip(argument_names(module, len(inputs)), inputs, strict=True)
    )


def _resized(example: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    for axis, (old, new) in enumerate(zip(example.shape, shape, strict=True)):
        if old and old != new:
            example = example.index_select(axis, torch.arange(new, device=example.device) % old)
    return example


def _with_reference(model: Model, reference: TorchReference) -> Model:
    """Return the model with what it is compared with; whole numbers reach as far as in the examples."""
    return replace(model, inputs=reference.with_ranges(model.inputs), reference=reference)


def _decomposed(
    program: torch.export.ExportedProgram, name: str, shapes: Mapping[str, tuple[int, ...]]
) -> torch.export.ExportedProgram:
    """Return the program for fixed shapes, in operators that have converters; errors of `decompose`.

    Raises:
        UnsupportedOperatorError: it holds a sparse tensor, or torch cannot trace it again.
    """
    _require_dense(program, name)
    require_shapes(program, name, shapes)
    try:
        with quiet_export():
            return decompose(program, name, shapes=shapes)
    except Exception as error:  # foreign code: torch traces the program again
        changed = _CHANGED_CONSTANT.search(str(error))
        if changed:
            raise UnsupportedOperatorError(
                f"forward of {name} changes {changed[1]}, a tensor that is no buffer, and no program holds "
                f'that; make it one by register_buffer("{changed[1]}", …)'
            ) from error
        raise UnsupportedOperatorError(
            f"torch cannot take {name} apart into simpler operators ({_first_line(error)}); export it again, "
            "for fixed shapes"
        ) from error


def _require_dense(program: torch.export.ExportedProgram, name: str) -> None:
    """Require that a program's tensors are dense: on others, torch ends the process as it traces again.

    Raises:
        UnsupportedOperatorError: one is sparse; names it.
    """
    inputs = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    for tensor_name, tensor in {**inputs, **program.constants, **program.state_dict}.items():
        if isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided:
            raise UnsupportedOperatorError(
                f"{tensor_name} of {name} is a sparse tensor ({tensor.layout}), which cannot be handed to a "
                "compiled program; convert it by .to_dense()"
            )


def _load_python(location: str) -> ModuleType:
    """Return the module that an importable name or a path of a Python file names.

    As for `python -m` and `python FILE`, the working folder or the file's own is searched first.
    """
    if not location.endswith(".py"):
        try:
            with _searched_first(Path.cwd()):
                return importlib.import_module(location)
        except ModuleNotFoundError as error:
            if error.name is None or not location.startswith(error.name):
                raise  # the module exists, and misses one of its own
            raise UnknownNameError(
                f"there is no Python module {location!r}; check the name and PYTHONPATH"
            ) from error
    path = Path(location)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ModelFileError(f"cannot read {location}: there is no such file; check the path")
    module = importlib.util.module_from_spec(spec)
    with _searched_first(path.resolve().parent):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _searched_first(folder: Path) -> Iterator[None]:
    """Let imports find what lies in the folder."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


_VALUES = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "UserError")
"""Errors of torch about numbers that are known only when the module runs."""


def _explain(module: torch.nn.Module, inputs: Sequence[Any], error: Exception) -> str:
    """Return a reason and a remedy, such as "ValueError: … ; …", for an error of an export.

    Args:
        module: what could not be exported.
        inputs: its example inputs.
        error: what was raised.
    """
    for name, each in module.named_modules():
        what = f"{name or 'the module itself'}, a {type(each).__name__},"
        if isinstance(each, torch.jit.ScriptModule):
            return f"{what} is a program of TorchScript; give the module that was scripted"
        if ".quantized" in type(each).__module__:
            return f"{what} holds packed, quantised weights; give the module as it was before"
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            return f"{name} has no shape yet, as in a lazy module; run the module once on its inputs first"
        if tensor.is_meta:
            return f"{name} is on the device meta, without values; load its weights first"
    failure = _failure(module, inputs)
    if failure is not None:
        at_once = "as when the module runs on its example inputs"
        return f"{_located(failure)}, {at_once}; give inputs that it works for"
    if type(error).__name__ in _VALUES:
        return f"{_located(error)}; see that its control flow does not depend on values of tensors"
    return f"{_located(error)}; write that line otherwise, or give an ONNX file"


def _failure(module: torch.nn.Module, inputs: Sequence[Any]) -> Exception | None:
    """Return what a module raises when it runs on its example inputs; None where it runs."""
    try:
        with in_mode(module, training=False) as call, torch.enable_grad():
            call(*inputs)
    except Exception as error:  # foreign code: the user's own module
        return error
    return None


def _located(error: Exception) -> str:
    """Return an error's first line, after the line of source that raised it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    what = ": ".join([type(error).__name__, *lines[:1]])
    place = raised_at(error)
    return f"{place}: {what}" if place else what

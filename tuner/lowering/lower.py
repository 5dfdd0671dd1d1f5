"""Lower a partitioned module through its backends and TVM's pipeline, build it, and run it.

A single candidate and a whole model take exactly this path. Each backend first lowers its own partitions; the
partitions are then inlined into their callers, so that one memory plan covers the whole function; what no
partition holds goes through TVM's default legalisation and fusion, which leaves finished kernels alone
because they are marked opaque. Parameters of kernels get names that CUDA C++ takes: a weight of
`torch.nn.Sequential` is called `0.bias`, and no name in C begins with a digit.

A program for a GPU can be replayed as one CUDA graph if its memory is the caller's: a graph holds addresses,
and what `main` allocates is free again when it returns. So `main` takes its storages after all other
arguments, and `ALLOCATE_NAME` makes them, once. Checked in tests/tuner/lowering/test_lower.py and
tests/software_gpu/device_graphs.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, cast

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from tuner.backends.blas import Blas, call_blas
from tuner.backends.protocol import Backend, CompositeBackend
from tuner.backends.torch.operators import provide_torch_calls
from tuner.backends.tvm.nan_semantics import module_passing_nan
from tuner.backends.tvm.schedule import schedule_kernels
from tuner.errors import UnknownNameError
from tuner.graph.legalization import legalize_operators
from tuner.graph.relax_types import PARTITION_ATTRIBUTE, IRModule, RelaxFunction
from tuner.lowering.input_alignment import reads_inputs_anywhere
from tuner.lowering.narrow_parts import narrow_parts
from tuner.lowering.outline import with_composites
from tuner.lowering.weight_binding import lift_weights
from tuner.runtime.cuda_graph import ALLOCATE_NAME
from tuner.targets.cuda_compiler import provide_compiler
from tuner.targets.resolution import code_options, tvm_target
from tuner.targets.target import Target

_STORAGE = "relax.memory.alloc_storage"

_PLAIN_CODE = {"opt-level": 2}
"""What a target is told where loops run once or twice: LLVM's last level unswitches naive loops, which takes
longer than they run."""

Executable: TypeAlias = Any
"""A `tvm.runtime.Executable` that holds the bytecode of a Relax virtual machine."""


def lower_module(module: IRModule, backends: Sequence[Backend], target: Target) -> IRModule:
    """Return the module with every partition lowered by its backend and inlined, before TVM's pipeline.

    Where `main` knows its weights, they are bound once (`tuner.lowering.weight_binding`).

    Args:
        module: public Relax functions that call partitions (private functions that carry
            `PARTITION_ATTRIBUTE`), or that are themselves left to TVM's default lowering.
        backends: at least those that the partitions name.

    Raises:
        UnknownNameError: a partition names a backend that is not given.
    """
    module = narrow_parts(_with_c_names(module)) if target.kind == "cuda" else module
    partitions = partitions_by_backend(module)
    backend_by_name = {backend.name: backend for backend in backends}
    for name, functions in partitions.items():
        if name not in backend_by_name:
            raise UnknownNameError(
                f"partition {functions[0]} names backend {name!r}, but only {', '.join(backend_by_name)} "
                "are given; pass the backends that the partition search used"
            )
        backend = backend_by_name[name]
        if isinstance(backend, CompositeBackend) and backend.takes_composites:
            module = _with_composites(module, functions)
        module = backend.lower(module, functions, target)
    return lift_weights(relax.transform.InlinePrivateFunctions()(module))


def _with_composites(module: IRModule, functions: Sequence[str]) -> IRModule:
    """Return the module with the labelled calls of some partitions as functions inside of them."""
    composed = module.clone()
    for name in functions:
        function = module[name]
        backend = function.attrs[PARTITION_ATTRIBUTE]
        inner = with_composites(function).with_attr(PARTITION_ATTRIBUTE, backend)
        composed.update_func(composed.get_global_var(name), inner)
    return composed


def build_module(module: IRModule, target: Target) -> Executable:
    """Return what runs a module that `lower_module` returned: TVM's own pipeline and code generation.

    Kernels that no backend scheduled get the `tvm` backend's schedules.
    """
    return build_with_storages(module, target)[0]


def build_planned(
    module: IRModule, target: Target, *, hoists_storages: bool = False
) -> tuple[Executable, int]:
    """Return what `build_module` does, and the bytes that TVM planned for results and intermediate tensors.

    That is all a program holds beside its arguments, except what a library allocates within a call.
    """
    executable, storages = build_with_storages(module, target, hoists_storages=hoists_storages)
    return executable, sum(storages)


def build_for_graph(module: IRModule, target: Target) -> Executable:
    """Return what `build_module` does for a GPU, but `main` takes its storages: see `_hoist_storages`."""
    return build_with_storages(module, target, hoists_storages=True)[0]


def build_with_storages(
    module: IRModule, target: Target, *, hoists_storages: bool = False
) -> tuple[Executable, tuple[int, ...]]:
    """Return what `build_module` does, and the bytes of each storage that TVM planned."""
    provide_torch_calls(module)
    if target.kind == "cuda":
        provide_compiler()
    device = tvm_target(target)
    planned: list[int] = []
    with _without_assertions() if target.kind == "cpu" else nullcontext():
        executable = tvm.compile(
            module,
            target=device,
            relax_pipeline=_pipeline(device, target, planned.append, hoists_storages=hoists_storages),
        )
    return executable, tuple(planned)


def build_reference(module: IRModule, target: Target) -> Executable:
    """Return what runs the module without its partitions, for its results to be compared with.

    It shares as little as it can with what is checked: TVM's own naive loops with NumPy's matrix products
    (TVM's take a second a GFLOP), or our schedules without NumPy where partitions of BLAS are checked.

    Args:
        module: what `lower_module` takes.
        target: a CPU.
    """
    checks_blas = Blas.name in partitions_by_backend(module)
    plain = _as_one_function(module)
    return build_module(plain, target) if checks_blas else build_unscheduled(plain, target)


def build_gpu_reference(module: IRModule, target: Target) -> Executable:
    """Return what runs a module's operators on the processor, for a GPU's results to be compared with.

    No schedule and no library of the GPU's takes part in it. It has our schedules for CPUs: what is worth a
    GPU takes minutes in naive loops.

    Args:
        module: what `lower_module` takes.
        target: a CPU.
    """
    return build_module(call_blas(_as_one_function(module)), target)


def _as_one_function(module: IRModule) -> IRModule:
    """Return the module as one function that no backend has a part of."""
    return relax.transform.InlinePrivateFunctions()(_without_partitions(module))


def build_unscheduled(module: IRModule, target: Target) -> Executable:
    """Return what runs a module with naive loops wherever no backend lowered it, and NumPy's matrix products.

    The loops are TVM's own, without a schedule; a GPU cannot run such.

    Args:
        module: what `lower_module` returned, or one without partitions.
        target: a CPU.
    """
    provide_torch_calls(module)
    pipeline = relax.get_pipeline("default")
    legal = module_passing_nan(_drop_scopes()(legalize_operators()(call_blas(module))))
    attributes = json.loads(target.tvm_json)
    device = tvm.target.Target(attributes | code_options(attributes) | _PLAIN_CODE)
    with _without_assertions():
        return tvm.compile(legal, target=device, relax_pipeline=pipeline)


def _without_assertions() -> AbstractContextManager[Any]:
    """Return what leaves out the checks of a kernel's arguments.

    The virtual machine checks shapes, data types, layout and alignment of what it is given; that each kernel
    does so again makes half of a small one's machine code.
    """
    # The default's own level, which the context would otherwise lose.
    level = tvm.transform.PassContext.current().opt_level
    return cast(
        AbstractContextManager[Any],
        tvm.transform.PassContext(opt_level=level, config={"tirx.disable_assert": True}),
    )


def flat_arrays(result: Any) -> tuple[np.ndarray, ...]:
    """Return a virtual machine's result, a tensor or nested tuples of them, as a flat tuple of arrays."""
    if hasattr(result, "numpy"):
        return (result.numpy(),)
    return tuple(array for item in result for array in flat_arrays(item))


def partitions_by_backend(module: IRModule) -> dict[str, list[str]]:
    """Return names of partitions by backend, both sorted by the partitions' names."""
    functions: dict[str, list[str]] = {}
    for variable, function in sorted(module.functions_items(), key=lambda item: item[0].name_hint):
        name = _backend_of(function)
        if name is not None:
            functions.setdefault(name, []).append(variable.name_hint)
    return functions


def _backend_of(function: Any) -> str | None:
    if not isinstance(function, relax.Function) or not function.attrs:
        return None
    return str(function.attrs[PARTITION_ATTRIBUTE]) if PARTITION_ATTRIBUTE in function.attrs.keys() else None  # noqa: SIM118


def _without_partitions(module: IRModule) -> IRModule:
    """Return the module with partitions as plain private functions, so that they can be inlined."""
    plain = module.clone()
    for variable, function in module.functions_items():
        if _backend_of(function) is not None:
            plain.update_func(variable, function.without_attr(PARTITION_ATTRIBUTE))
    return plain


def _pipeline(
    device: Any, target: Target, note_bytes: Callable[[int], None], *, hoists_storages: bool
) -> Any:
    """Return TVM's default pipeline without constant folding.

    Folding would run weights through the host while compiling; a measured candidate must not lose work to it.
    """
    passes = [
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        legalize_operators(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        _schedule_rest(target),
        _drop_scopes(),
        relax.transform.RewriteDataflowReshape(),
        *([reads_inputs_anywhere()] if target.kind == "cpu" else []),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        relax.transform.LowerAllocTensor(),
        _note_storage(note_bytes),
        *([_hoist_storages()] if hoists_storages else []),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]

    @tvm.transform.module_pass(opt_level=0, name="TesselPipeline")
    def run(module: IRModule, _context: Any) -> IRModule:
        module = _with_c_names(module) if target.kind == "cuda" else module
        with device:
            return tvm.transform.Sequential(passes)(module)

    return run


def _drop_scopes() -> Any:
    """Return the pass that takes out the marks of TVM's script builder, which its code generator warns of.

    Kernels of several loops (a scatter, the gradient of `take`) have a `pragma_scope` around them that says
    nothing.
    """

    def body_of(statement: Any) -> Any:
        return statement.body if statement.attr_key == "pragma_scope" else statement

    @tvm.transform.module_pass(opt_level=0, name="TesselDropScopes")
    def run(module: IRModule, _context: Any) -> IRModule:
        plain = module.clone()
        for variable, function in module.functions_items():
            if isinstance(function, tvm.tirx.PrimFunc):
                plain.update_func(variable, tvm_ffi.structural_map(function, (tvm.tirx.AttrStmt, body_of)))
        return plain

    return run


def _note_storage(note_bytes: Callable[[int], None]) -> Any:
    """Return the pass that tells the size of each storage that `main` allocates."""

    @tvm.transform.module_pass(opt_level=0, name="TesselNoteStorage")
    def run(module: IRModule, _context: Any) -> IRModule:
        for variable, function in module.functions_items():
            if variable.name_hint == "main" and isinstance(function, relax.Function):
                relax.analysis.post_order_visit(function, note)
        return module

    def note(expression: Any) -> None:
        if isinstance(expression, relax.Call) and getattr(expression.op, "name", "") == _STORAGE:
            (extent,) = expression.args[0].values
            note_bytes(int(extent))

    return run


def _schedule_rest(target: Target) -> Any:
    """Return the pass that schedules what no backend did: an unscheduled kernel cannot run on a GPU."""

    @tvm.transform.module_pass(opt_level=0, name="TesselScheduleRest")
    def run(module: IRModule, _context: Any) -> IRModule:
        return schedule_kernels(module, target)

    return run


def _with_c_names(module: IRModule) -> IRModule:
    """Return the module with parameters of Relax functions under names that begin with a letter."""
    named = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function) and any(map(_is_refused, function.params)):
            named.update_func(variable, _renamed(function))
    return named


def _is_refused(parameter: Any) -> bool:
    return bool(parameter.name[:1].isdigit())


def _renamed(function: RelaxFunction) -> RelaxFunction:
    fresh = {
        each: relax.Var(f"p{each.name}", each.ty) if _is_refused(each) else each for each in function.params
    }
    return tvm_ffi.structural_map(function, (relax.Var, lambda each: fresh.get(each, each)))


def _hoist_storages() -> Any:
    """Return the pass that takes the storages out of `main`; it follows `LowerAllocTensor`."""

    @tvm.transform.module_pass(opt_level=0, name="TesselHoistStorages")
    def run(module: IRModule, _context: Any) -> IRModule:
        main, allocate = _hoisted(module["main"])
        hoisted = module.clone()
        hoisted.update_func(hoisted.get_global_var("main"), main)
        hoisted.update_func(relax.GlobalVar(ALLOCATE_NAME), allocate)
        return hoisted

    return run


def _hoisted(main: RelaxFunction) -> tuple[RelaxFunction, RelaxFunction]:
    storages: list[Any] = []
    blocks = []
    for block in main.body.blocks:
        kept: list[Any] = []
        for binding in block.bindings:
            is_storage = getattr(getattr(binding.value, "op", None), "name", "") == _STORAGE
            (storages if is_storage else kept).append(binding)
        blocks.append(relax.BindingBlock(kept))
    # The variables of the bindings are now parameters; the function that makes storages binds its own.
    parameters = [*main.params, *(binding.var for binding in storages)]
    body = relax.SeqExpr(blocks, main.body.body)
    hoisted = relax.Function(parameters, body, main.ret_ty, is_pure=False, attrs=main.attrs)
    builder = relax.BlockBuilder()
    with builder.function(ALLOCATE_NAME, [], attrs={"relax.force_pure": True}):
        builder.emit_func_output(relax.Tuple([builder.emit(binding.value) for binding in storages]))
    return hoisted, builder.get()[ALLOCATE_NAME]

"""TVM itself, without tuning: one fused kernel per partition, scheduled by rules without search.

TVM's default CPU code is naive single-threaded loops. This backend legalises a partition, fuses all of it
into one kernel where TVM's fusion accepts that (several kernels otherwise), and applies
the schedules of `tuner.backends.tvm.schedule`. Where a rule does not apply, the kernel keeps
the schedule it had: slower, never wrong. Checked in tests/tuner/backends/.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from urllib.parse import urlencode

import tvm
from tvm import relax

from tuner.backends.kernel_version import version_entry
from tuner.backends.tvm.schedule import SCHEDULES_VERSION, schedule_kernels
from tuner.graph.legalization import legalize_operators
from tuner.graph.relax_types import PARTITION_ATTRIBUTE, IRModule, RelaxFunction
from tuner.rules.protocol import Rule
from tuner.rules.styles import DEFAULT_MAX_DEPTH, tvm_native_rule
from tuner.targets.target import Target

logger = logging.getLogger(__name__)


class TvmNative:
    """Runs partitions as TVM kernels with untuned schedules."""

    name = "tvm"
    settings = ""

    def __init__(self, compat: int = 0, depth: int = DEFAULT_MAX_DEPTH, groups: int = 1) -> None:
        """Propose what kinds allow to fuse.

        Args:
            compat: 1 for what the published closure finds, which is incomplete.
            depth: operators on the longest path of a proposal, TVM's own groups excepted.
            groups: 0 to leave out the groups that TVM's own fusion forms, however deep.

        Raises:
            ValueError: the depth is 0.
        """
        self.compat, self.depth, self.groups = compat, depth, groups
        tvm_native_rule(depth)  # which refuses a depth of 0

    @property
    def reference(self) -> str:
        """Name and settings; these decide what is proposed, not how fast it is, so records know none."""
        given = {
            "compat": (self.compat, 0),
            "depth": (self.depth, DEFAULT_MAX_DEPTH),
            "groups": (self.groups, 1),
        }
        settings = {name: value for name, (value, default) in given.items() if value != default}
        return f"{self.name}?{urlencode(settings)}" if settings else self.name

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Return the version of the schedule rules; TVM's own is in every environment."""
        return (version_entry(self.name, SCHEDULES_VERSION),)

    def unavailable_reason(self, target: Target) -> str | None:
        """Return None: whatever TVM has a target for, it generates code for."""
        return None

    def rule(self, target: Target) -> Rule:
        """Return TVM's fusion rules, complete instead of greedy."""
        return tvm_native_rule(self.depth, groups=bool(self.groups), published=bool(self.compat))

    def refusal(self, function: RelaxFunction, target: Target) -> str | None:
        """Return None: an operator that cannot be legalised shows as a failed measurement."""
        return None

    def lower(self, module: IRModule, functions: Sequence[str], target: Target) -> IRModule:
        """Return the module with each named function turned into calls of scheduled kernels."""
        for name in functions:
            kernels = schedule_kernels(fuse_function(module[name]), target)
            module = replace_function(module, name, kernels)
        return module


def fuse_function(function: RelaxFunction) -> IRModule:
    """Return a module whose `main` does what the function does by calling as few kernels as possible."""
    legal = legalize_operators()(tvm.IRModule({"main": as_public(function)}))
    try:
        return _fuse_into_one(legal)
    except Exception as error:  # TVM's fusion signals what it cannot merge by many types of error
        logger.debug("partition is not one kernel: %s", error)
        return fuse_as_tvm_does(legal)


def replace_function(module: IRModule, name: str, replacement: IRModule) -> IRModule:
    """Return the module with the named private function replaced by `main` of another module.

    The kernels of the replacement come along under names of their own, so that no two partitions share one.
    """
    builder = relax.BlockBuilder(module.clone())  # what follows updates the module in place
    renamed = {
        variable: builder.add_func(function, f"{name}_{variable.name_hint}")
        for variable, function in replacement.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc)
    }
    body = _Renamed(renamed).visit_expr(replacement["main"]).without_attr("global_symbol")
    result = builder.get()
    result.update_func(module.get_global_var(name), body)
    return result


def as_public(function: RelaxFunction) -> RelaxFunction:
    """Return the function as a module's `main`, without what marks it as a partition."""
    for attribute in (PARTITION_ATTRIBUTE, "global_symbol", "Primitive", "Composite", "Codegen"):
        function = function.without_attr(attribute)
    return function.with_attr("global_symbol", "main")


def _fuse_into_one(legal: IRModule) -> IRModule:
    """Declare all of `main` one primitive, which TVM's fusion then turns into one kernel."""
    function = legal["main"].without_attr("global_symbol").with_attr("Primitive", True)
    rest = legal.clone()
    del rest["main"]
    builder = relax.BlockBuilder(rest)
    primitive = builder.add_func(function, "fused")
    parameters = [relax.Var(parameter.name, parameter.ty) for parameter in function.params]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(primitive, parameters))
        builder.emit_func_output(result)
    return relax.transform.FuseTIR()(builder.get())


def fuse_as_tvm_does(legal: IRModule) -> IRModule:
    """Return a legalised module with kernels fused where TVM's own rules fuse them."""
    annotated = relax.transform.AnnotateTIROpPattern()(legal)
    return relax.transform.FuseTIR()(relax.transform.FuseOps()(annotated))


@relax.expr_functor.mutator
class _Renamed(relax.PyExprMutator):
    """Replaces global variables."""

    def __init__(self, renamed: dict[object, object]) -> None:
        super().__init__()
        self.renamed = renamed

    def visit_global_var_(self, op: object) -> object:
        return self.renamed.get(op, op)

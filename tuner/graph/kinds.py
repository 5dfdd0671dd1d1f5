"""Op-pattern kinds, which determine the operators that TVM can fuse into one kernel.

Relax, unlike Relay, declares no kind for an operator: it derives one from the loops that the operator is
legalised to. That costs milliseconds an operator, and depends on how TVM writes the loops (an `add` that
broadcasts counts as elementwise). So the common operators have their kind in a table here, and only what the
table lacks is legalised and analysed, once per operator name.

Source: TVM's `OpPatternKind`; TVM RFC 62 ("OpCallByKind"). Relay's table differs (there softmax is opaque).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import tvm
from tvm import relax

from tuner.graph.legalization import legalize_operators
from tuner.graph.torch_call import read_torch_call

logger = logging.getLogger(__name__)


class PatternKind(IntEnum):
    """Kinds from the easiest to fuse to the hardest; a sub-graph has the largest kind inside."""

    ELEMENTWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    REDUCTION = 3
    ANCHOR = 4
    """Elementwise operators can follow it in one kernel: matrix products, convolutions, softmax."""
    OPAQUE = 8


_NAMES_BY_KIND = {
    PatternKind.ELEMENTWISE: (
        "abs acos acosh asin asinh atan atanh astype bitwise_not ceil clip cos cosh erf exp floor "
        "isfinite isinf isnan log logical_not negative round rsqrt sigmoid sign sin sinh sqrt square tan "
        "tanh trunc nn.dropout nn.gelu nn.gelu_tanh nn.leakyrelu nn.relu nn.selu nn.silu nn.softplus"
    ),
    PatternKind.BROADCAST: (
        "add atan2 bitwise_and bitwise_or bitwise_xor broadcast_to divide equal floor_divide floor_mod "
        "greater greater_equal left_shift less less_equal logical_and logical_or logical_xor maximum "
        "minimum mod multiply not_equal power right_shift subtract where nn.batch_norm nn.prelu"
    ),
    PatternKind.INJECTIVE: (
        "arange collapse_sum_like concat expand_dims eye flatten flip full full_like gather_elements "
        "gather_nd index_tensor layout_transform meshgrid nn.pad nn.pixel_shuffle one_hot ones ones_like "
        "permute_dims repeat reshape reverse_sequence slice_scatter split squeeze stack strided_slice "
        "take tile tril triu zeros zeros_like"
    ),
    PatternKind.REDUCTION: "argmax argmin collapse_sum_to max mean min prod std sum variance",
    PatternKind.ANCHOR: (
        "einsum matmul nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.avg_pool1d nn.avg_pool2d "
        "nn.avg_pool3d nn.conv1d nn.conv1d_transpose nn.conv2d nn.conv2d_transpose nn.conv3d "
        "nn.conv3d_transpose nn.cross_entropy_with_logits nn.group_norm nn.instance_norm nn.layer_norm "
        "nn.log_softmax nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.nll_loss nn.rms_norm nn.softmax outer"
    ),
    PatternKind.OPAQUE: (
        "argsort bucketize call_dps_packed call_inplace_packed call_pure_packed cumprod cumsum "
        "dynamic_strided_slice multinomial_from_uniform nn.attention nn.attention_bias "
        "nn.attention_var_len nonzero scatter_elements scatter_nd shape_of shape_to_tensor size sort "
        "tensor_to_shape topk unique image.resize2d image.grid_sample"
    ),
}

KIND_BY_OPERATOR = {name: kind for kind, names in _NAMES_BY_KIND.items() for name in names.split()}
"""Kind of the operators known beforehand, by name without the dialect."""

_derived_kind_by_operator: dict[str, PatternKind] = {}
"""What analysis found for other operators, in the order of their first use; the same in every process."""


def short_name(call: Any) -> str:
    """Return the name of what a Relax call calls, without the dialect: `matmul`, `nn.conv2d`.

    A call of a TIR function or an external function is named by that function, one of torch by its operator.
    """
    operator = call.op
    if not isinstance(operator, tvm.ir.Op):
        return str(getattr(operator, "name_hint", getattr(operator, "global_symbol", operator)))
    name = str(operator.name).removeprefix("relax.")
    if name == "call_tir":
        return str(call.args[0].name_hint)
    if name in ("call_dps_packed", "call_pure_packed", "call_inplace_packed"):
        torch_call = read_torch_call(call)
        if torch_call is not None:
            return torch_call.name
        return str(call.args[0].global_symbol)
    return name


def kind_of(call: Any, module: Any) -> PatternKind:
    """Return the op-pattern kind of a Relax call.

    Args:
        call: a call whose arguments are variables, constants, shapes or tuples of these.
        module: the module that holds the TIR functions it may call.
    """
    if not isinstance(call.op, tvm.ir.Op):
        return PatternKind.OPAQUE
    name = str(call.op.name).removeprefix("relax.")
    if name == "call_tir":
        return _annotated_kind(module[call.args[0]])
    if name == "nn.batch_norm" and call.attrs.training:
        return PatternKind.ANCHOR  # it reduces over the batch first; with given statistics it only scales
    known = KIND_BY_OPERATOR.get(name)
    if known is not None:
        return known
    if name not in _derived_kind_by_operator:
        _derived_kind_by_operator[name] = _derived_kind(name, call)
    return _derived_kind_by_operator[name]


def _derived_kind(name: str, call: Any) -> PatternKind:
    """Legalise one call alone and return the kind of the loops it becomes; opaque where that fails."""
    try:
        module = legalize_operators()(_module_of(call))
        kinds = _primitive_kinds(relax.transform.AnnotateTIROpPattern()(module))
    except Exception as error:  # foreign operators fail to legalise in as many ways as there are operators
        logger.debug("%s cannot be legalised alone and counts as opaque: %s", name, error)
        return PatternKind.OPAQUE
    return max(kinds, default=PatternKind.OPAQUE)


def _module_of(call: Any) -> Any:
    """Return a module whose `main` does just the call."""
    parameters: list[Any] = []

    def parameter(argument: Any) -> Any:
        if isinstance(argument, relax.Tuple):
            return relax.Tuple([parameter(field) for field in argument.fields])
        if not isinstance(argument, relax.Var):
            return argument
        parameters.append(relax.Var(f"argument{len(parameters)}", argument.ty))
        return parameters[-1]

    arguments = [parameter(argument) for argument in call.args]
    builder = relax.BlockBuilder()
    with builder.function("main", parameters):
        builder.emit_func_output(builder.emit(relax.Call(call.op, arguments, call.attrs, call.ty_args)))
    return builder.get()


def _primitive_kinds(module: Any) -> Sequence[PatternKind]:
    return [
        _annotated_kind(function)
        for _, function in module.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc)
    ]


def _annotated_kind(function: Any) -> PatternKind:
    """Return the kind that TVM's analysis wrote on a TIR function; opaque where it wrote none that fuses."""
    attributes = function.attrs
    annotated = attributes is not None and "op_pattern" in attributes.keys()  # noqa: SIM118 - not a Mapping
    kind = int(attributes["op_pattern"]) if annotated else int(PatternKind.OPAQUE)
    return PatternKind(kind) if kind <= PatternKind.ANCHOR else PatternKind.OPAQUE

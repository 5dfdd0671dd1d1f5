"""Work of a layer on one device: kernels forward and backward, bytes kept between, bytes while it runs.

The rules of parallelism are Megatron-Core's. With sequence parallelism a part gathers its input over the
tensor-parallel group and scatters the sum of its output; a backward gathers the gradient of the output and
the input again, and scatters the input's gradient. All are waited for, unless the recipe overlaps them with
the products next to them. Context parallelism passes keys and values around beside the attention, or
exchanges tokens for heads before and after it. Experts exchange rows before and after; a micro-batch's rows
are spread evenly but for `imbalance`, and none is dropped.

Kept: the input and output of each norm, what attention's kernel takes and gives, and inputs of products.
Each tensor and kernel carries the name of the part that recomputation would run again.

Checked in tests/tessel/architectures/test_work.py.
Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (MLSys 2023),
section 4, there without flash attention and gates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import TypeVar

from tessel.architectures.architecture import (
    Attention,
    Block,
    Experts,
    FeedForward,
    LatentAttention,
    Linear,
    Part,
    StateSpace,
)
from tessel.architectures.kernels import (
    ELEMENT_BYTES,
    Access,
    AttentionCore,
    Beside,
    Exchange,
    Kernel,
    Moved,
    Product,
    Scan,
)
from tessel.architectures.shape import Shape

_Kernel = TypeVar("_Kernel")


@dataclass(slots=True)
class Work:
    """What a layer does and holds for a micro-batch, on one device.

    Attributes:
        forward: kernels, each with the name of the part that recomputation runs again.
        backward_input: kernels of the half that yields the gradient of the input.
        backward_weight: kernels of the half that yields gradients of weights.
        saved: bytes kept from forward to backward, named likewise.
        for_weight: of these, bytes that the weights' half needs; gradients of outputs included.
        running: bytes beyond all of that while the backward runs, at most.
        stand_ins: bytes of gradients that autograd is handed in place of those that products add to 32-bit
            sums themselves: one in 16 bits for each shape of weight, which stays allocated.
    """

    forward: list[tuple[str, Kernel]] = field(default_factory=list)
    backward_input: list[Kernel] = field(default_factory=list)
    backward_weight: list[Kernel] = field(default_factory=list)
    saved: list[tuple[str, float]] = field(default_factory=list)
    for_weight: float = 0.0
    running: float = 0.0
    stand_ins: dict[tuple[int, int], float] = field(default_factory=dict)

    def product(self, linear: Linear, rows: float, shape: Shape, module: str = "") -> None:
        """Add a product with a weight, forward and backward, at the device's share of it."""
        inputs, outputs = share_of(linear, shape.tensor_parallel)
        self._products(rows, outputs, inputs, 1, module)

    def grouped(self, linear: Linear, rows: float, groups: int, shape: Shape, module: str = "") -> None:
        """Add one product of every expert of the device."""
        inputs, outputs = share_of(linear, shape.tensor_parallel)
        self._products(rows, outputs, inputs, groups, module)

    def _products(self, rows: float, outputs: int, inputs: int, groups: int, module: str) -> None:
        self.forward.append((module, Product(rows, outputs, inputs, groups)))
        self.backward_input.append(Product(rows, inputs, outputs, groups))
        self.backward_weight.append(Product(rows, outputs, inputs, groups, sums_rows=True))
        self.stand_ins[outputs, inputs] = ELEMENT_BYTES * outputs * inputs

    def elementwise(
        self, num_bytes: float, module: str = "", *, backward: float = 1.5, access: Access = "in_order"
    ) -> None:
        """Add work that moves so many bytes forward, and so many times as many backward."""
        self.forward.append((module, Moved(num_bytes, access=access)))
        self.backward_input.append(Moved(backward * num_bytes, access=access))

    def keep(self, num_bytes: float, module: str = "", *, for_weight: bool = False) -> None:
        """Keep bytes until the backward, or until its second half."""
        self.saved.append((module, num_bytes))
        self.for_weight += num_bytes if for_weight else 0.0

    def exchange(self, forward: Exchange | None, backward: Exchange | None = None, module: str = "") -> None:
        """Add collectives that are waited for."""
        if forward is not None:
            self.forward.append((module, forward))
        if backward is not None:
            self.backward_input.append(backward)


def share_of(linear: Linear, tensor_parallel: int) -> tuple[int, int]:
    """Return the inputs and outputs of a device's part of a product, rounded up."""
    if linear.split == "outputs":
        return linear.inputs, -(-linear.outputs // tensor_parallel)
    if linear.split == "inputs":
        return -(-linear.inputs // tensor_parallel), linear.outputs
    return linear.inputs, linear.outputs


def work_of_block(block: Block, shape: Shape) -> Work:
    """Return the work of a layer."""
    work = Work()
    for linear in block.joint:
        work.product(linear, shape.rows, shape)
        work.keep(shape.own_rows * linear.inputs * shape.recipe.kept_bytes, for_weight=True)
    for part in block.parts:
        _norm(work, block.hidden, shape)
        _add(part, work, block.hidden, shape)
        work.elementwise(6 * shape.own_rows * block.hidden)  # the residual
        if shape.recipe.has_dropout:
            work.keep(shape.own_rows * block.hidden)  # the mask, a byte an element
    if shape.recipe.overlaps_tensor:
        _overlap(work, shape)
    return work


def _overlap(work: Work, shape: Shape) -> None:
    """Put exchanges of tensor parallelism beside products, one of each, as far as both reach."""

    def is_exchange(kernel: Kernel) -> bool:
        return isinstance(kernel, Exchange) and kernel.span == shape.tensor_parallel > 1

    forward = [kernel for _, kernel in work.forward if is_exchange(kernel)]
    for index, (module, kernel) in enumerate(work.forward):
        if isinstance(kernel, Product) and forward:
            work.forward[index] = (module, Beside(kernel, forward.pop()))  # type: ignore[arg-type]  # as asked
    backward = [kernel for kernel in work.backward_input if is_exchange(kernel)]
    for half in (work.backward_input, work.backward_weight):
        for index, kernel in enumerate(half):
            if isinstance(kernel, Product) and backward:
                half[index] = Beside(kernel, backward.pop())  # type: ignore[arg-type]  # as asked
    left = (len(forward), len(backward))
    work.forward = _without(work.forward, left[0], lambda each: is_exchange(each[1]))
    work.backward_input = _without(work.backward_input, left[1], is_exchange)


def _without(kernels: list[_Kernel], left: int, is_exchange: Callable[[_Kernel], bool]) -> list[_Kernel]:
    """Return the kernels without exchanges but for the first few of them."""
    found = []
    for kernel in kernels:
        if is_exchange(kernel):
            left -= 1
            if left < 0:
                continue
        found.append(kernel)
    return found


def _norm(work: Work, hidden: int, shape: Shape) -> None:
    """Add a norm that keeps its input, and whose output the next products keep."""
    elements = shape.own_rows * hidden
    work.elementwise(4 * elements, "layernorm")
    work.keep(2 * elements)
    work.keep(shape.recipe.kept_bytes * elements, "layernorm", for_weight=True)


def into_group(work: Work, elements: float, shape: Shape, module: str = "") -> None:
    """Add what a column-parallel product waits for: its input of all devices of the group."""
    if shape.tensor_parallel > 1 and shape.recipe.has_sequence_parallel:
        gather = _tensor_exchange("all_gather", elements, shape)
        work.exchange(gather, gather, module)
        work.exchange(None, _tensor_exchange("reduce_scatter", elements, shape))
    elif shape.tensor_parallel > 1:
        work.exchange(None, _tensor_exchange("all_reduce", elements, shape))


def out_of_group(work: Work, elements: float, shape: Shape, module: str = "") -> None:
    """Add what a row-parallel product is followed by: the sum of its outputs."""
    if shape.tensor_parallel == 1:
        return
    if shape.recipe.has_sequence_parallel:
        work.exchange(
            _tensor_exchange("reduce_scatter", elements, shape),
            _tensor_exchange("all_gather", elements, shape),
            module,
        )
    else:
        work.exchange(_tensor_exchange("all_reduce", elements, shape), module=module)


def _tensor_exchange(kind: str, elements: float, shape: Shape) -> Exchange:
    degree = shape.tensor_parallel
    return Exchange(kind, 2 * elements, degree, degree)  # type: ignore[arg-type]  # one of the two callers' words


@singledispatch
def _add(part: Part, work: Work, hidden: int, shape: Shape) -> None:
    """Add the work of a part between its norm and the residual."""
    raise TypeError(f"{type(part).__name__} is no part of a layer")


@_add.register
def _attention(part: Attention, work: Work, hidden: int, shape: Shape) -> None:
    _, out = part.linears(hidden)
    degree, rows, recipe = shape.tensor_parallel, shape.rows, shape.recipe
    heads, kv_heads = part.heads / degree, max(1.0, part.kv_heads / degree)
    queries, kv = heads * part.head_dim, kv_heads * part.head_dim
    into_group(work, rows * hidden, shape)
    work.product(Linear(hidden, round(queries + 2 * kv)), rows, shape)
    if part.has_rotary:
        work.elementwise(4 * rows * (queries + kv))
    batch, tokens = shape.micro_batch, recipe.tokens
    if part.window and not part.is_causal:
        tokens = min(tokens, part.window)
        batch *= -(-recipe.tokens // tokens)
    core = AttentionCore(
        batch,
        heads,
        kv_heads,
        tokens / shape.context_parallel,
        tokens,
        part.head_dim,
        part.head_dim,
        part.window if part.is_causal else 0,
        is_causal=part.is_causal,
    )
    _core(work, core, shape)
    # Rotated copies of queries and keys, and a copy of the values: the product's output is released.
    work.keep(2 * rows * (queries + 2 * kv))
    work.keep(recipe.kept_bytes * rows * queries, for_weight=True)
    work.product(out, rows, shape)
    out_of_group(work, rows * hidden, shape)
    work.running = max(work.running, 2 * rows * (2 * queries + 2 * (queries + 2 * kv)))


@_add.register
def _latent(part: LatentAttention, work: Work, hidden: int, shape: Shape) -> None:
    rows, recipe, degree = shape.rows, shape.recipe, shape.tensor_parallel
    *ask, down, up, out = part.linears(hidden)
    for linear in (*ask[:-1], down):  # the compressions, of a device's own tokens
        work.product(linear, shape.own_rows, shape)
        work.keep(2 * shape.own_rows * linear.outputs)
    if degree > 1 and recipe.has_sequence_parallel:
        compressed = part.query_rank + part.kv_rank + part.rope_dim
        work.exchange(_tensor_exchange("all_gather", rows * compressed, shape))
    ranks = (part.query_rank or hidden) + part.kv_rank
    work.keep(recipe.kept_bytes * rows * (part.query_rank + part.kv_rank), for_weight=True)
    work.elementwise(4 * rows * ranks)
    work.product(ask[-1], rows, shape, "mla_up_proj")
    work.product(up, rows, shape, "mla_up_proj")
    heads = part.heads / degree
    keys, values = heads * part.key_dim, heads * part.value_dim
    work.elementwise(4 * rows * (2 * keys + values), "mla_up_proj")
    core = AttentionCore(
        shape.micro_batch,
        heads,
        heads,
        recipe.tokens / shape.context_parallel,
        recipe.tokens,
        part.key_dim,
        part.value_dim,
    )
    _core(work, core, shape)
    # Queries and keys are put together of rotated and other parts; values are copied from the product's
    # output, which is released.
    work.keep(2 * rows * (2 * keys + values), "mla_up_proj")
    work.keep(recipe.kept_bytes * rows * values, for_weight=True)
    work.product(out, rows, shape)
    out_of_group(work, rows * hidden, shape)
    work.running = max(work.running, 2 * rows * (2 * keys + 2 * values) * 1.5)


def _core(work: Work, core: AttentionCore, shape: Shape) -> None:
    """Add attention with what context parallelism exchanges, and what it keeps beside its operands."""
    degree = shape.context_parallel
    backward = core._replace(is_backward=True)
    rows = core.batch * core.queries
    span = degree * shape.tensor_parallel
    if degree == 1:
        work.forward.append(("core_attn", core))
        work.backward_input.append(backward)
    elif shape.recipe.context_exchange == "ring":
        sent = 2 * rows * core.kv_heads * (core.key_dim + core.value_dim)
        work.forward.append(("core_attn", Beside(core, Exchange("ring", sent, degree, span))))
        work.backward_input.append(Beside(backward, Exchange("ring", 2 * sent, degree, span)))
    else:
        sides = (core.heads + core.kv_heads) * (core.key_dim + core.value_dim)
        sent = 2 * rows * sides
        work.exchange(Exchange("all_to_all", sent, degree, span), module="core_attn")
        work.forward.append(("core_attn", core))
        work.backward_input += [backward, Exchange("all_to_all", sent, degree, span)]
    if shape.recipe.has_flash_attention:
        work.keep(4 * rows * core.heads, "core_attn")  # logarithms of the softmax's sums
    else:
        # Probabilities; of a dropout its mask and what it leaves. Their gradient is made in place.
        scores = rows * core.heads * core.tokens
        work.keep((5 if shape.recipe.has_dropout else 2) * scores, "core_attn")
        work.running = max(work.running, 2 * scores)


@_add.register
def _state_space(part: StateSpace, work: Work, hidden: int, shape: Shape) -> None:
    rows, degree = shape.rows, shape.tensor_parallel
    linears = part.linears(hidden)
    into_group(work, rows * hidden, shape)
    for linear in linears:
        work.product(linear, rows, shape)
    inner = part.inner / degree
    scan = Scan(rows, inner, part.state)
    work.forward.append(("", scan))
    work.backward_input.append(scan._replace(is_backward=True))
    into = linears[0].outputs / degree
    # The kernel runs convolution and scan again; its output and the gated norm's are kept.
    work.keep(2 * rows * (into + inner))
    work.keep(shape.recipe.kept_bytes * rows * inner, for_weight=True)
    out_of_group(work, rows * hidden, shape)
    work.running = max(work.running, 2 * rows * (into + 2 * inner))


@_add.register
def _feed_forward(part: FeedForward, work: Work, hidden: int, shape: Shape) -> None:
    into, out = part.linears(hidden)
    rows, width = shape.rows, part.width / shape.tensor_parallel
    into_group(work, rows * hidden, shape, "mlp")
    work.product(into, rows, shape, "mlp")
    _activation(work, part, rows * width, shape, "mlp", act_module="mlp")
    work.product(out, rows, shape, "mlp")
    out_of_group(work, rows * hidden, shape)


def _activation(
    work: Work, part: FeedForward, elements: float, shape: Shape, module: str, act_module: str
) -> None:
    """Add the activation of so many elements: it keeps its input, and the next product its output."""
    inputs = elements * (1 + part.is_gated)
    work.elementwise(2 * (inputs + elements), act_module)
    work.keep(2 * inputs, module)
    work.keep(shape.recipe.kept_bytes * elements, act_module, for_weight=True)
    # The gradient of the input is made when the output, as large as its own gradient, is released.
    work.running = max(work.running, 2 * inputs)


@_add.register
def _experts(part: Experts, work: Work, hidden: int, shape: Shape) -> None:
    recipe, own = shape.recipe, shape.own_rows
    width = part.latent or hidden
    work.product(Linear(hidden, part.count), own, shape)  # the router, of a device's own tokens
    work.elementwise(12 * own * part.count)
    work.keep(8 * own * part.count)  # logits and probabilities in 32 bits
    if part.latent:
        for linear in (Linear(hidden, part.latent), Linear(part.latent, hidden)):
            work.product(linear, own, shape, "moe")
            work.keep(recipe.kept_bytes * own * linear.inputs, "moe", for_weight=True)
    if part.shared is not None:
        _shared(part, work, hidden, shape)
    _routed(part, work, width, shape)


def _shared(part: Experts, work: Work, hidden: int, shape: Shape) -> None:
    assert part.shared is not None
    into, out = part.shared.linears(hidden)
    module = "moe" if "moe" in shape.recipe.recompute else "shared_experts"
    work.product(into, shape.rows, shape, module)
    elements = shape.rows * part.shared.width / shape.tensor_parallel
    _activation(work, part.shared, elements, shape, module, act_module=module)
    work.product(out, shape.rows, shape, module)


def _routed(part: Experts, work: Work, width: int, shape: Shape) -> None:
    recipe, own, degree = shape.recipe, shape.own_rows, shape.expert_parallel
    into, out = part.expert_linears(width)
    rows = shape.rows
    if not recipe.splits_experts:
        degree, rows = degree * shape.tensor_parallel, own
        shape = replace(shape, tensor_parallel=1)
    rows *= part.top_k * recipe.imbalance
    local = max(1, -(-part.count // degree))
    sent = 2 * own * part.top_k * width
    exchange = None
    if degree > 1:
        span = degree * shape.tensor_parallel
        exchange = Exchange("all_to_all", sent * recipe.imbalance, degree, span, part.top_k)
    for product, is_first in ((into, True), (out, False)):
        if is_first:
            work.exchange(exchange, exchange, "moe")
            into_group(work, rows * width, shape, "moe")
            work.elementwise(4 * rows * width, "moe", access="permuted")  # rows in the experts' order
            work.keep(recipe.kept_bytes * rows * width, "moe", for_weight=True)
        work.grouped(product, rows, local, shape, "moe")
        if is_first:
            module = "moe_act" if "moe" not in recipe.recompute else "moe"
            elements = rows * part.expert.width / shape.tensor_parallel
            _activation(work, part.expert, elements, shape, "moe", act_module=module)
    out_of_group(work, rows * width, shape, "moe")
    work.elementwise(4 * rows * width, "moe", access="permuted")  # back in the tokens' order, summed
    work.exchange(exchange, exchange, "moe")

"""Kernels that a layer runs on one device: their shapes, FLOPs and traffic, without any device's speed.

A price is a function of a kernel (`KernelPrice`); the roofline of a data sheet is one, a model learned from
measured kernels may be another, and nothing else of a table of predicted costs depends on which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

ELEMENT_BYTES = 2
"""Bytes of an activation or weight in 16 bits."""

ExchangeKind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "ring"]


class Product(NamedTuple):
    """A product of matrices, or several of one shape in one launch.

    Attributes:
        rows: of the output, of all groups together.
        outputs: columns of the output.
        inputs: elements that are summed.
        groups: weights in the launch, such as experts; each has `rows / groups` rows, or, where the
            product is of a weight's gradient (`sums_rows`), sums as many.
        sums_rows: whether it is the gradient of the weight, (outputs × inputs) of each group.
    """

    rows: float
    outputs: int
    inputs: int
    groups: int = 1
    sums_rows: bool = False

    @property
    def flops(self) -> float:
        """Operations, a multiplication and an addition being two."""
        return 2.0 * self.rows * self.outputs * self.inputs

    @property
    def moved_bytes(self) -> float:
        """Bytes read and written once."""
        weights = self.groups * self.outputs * self.inputs * (2 if self.sums_rows else 1)
        return ELEMENT_BYTES * (self.rows * (self.outputs + self.inputs) + weights)


class AttentionCore(NamedTuple):
    """Scores, softmax and weighted sum of a flash attention.

    Attributes:
        batch: sequences.
        heads: of queries, on the device.
        kv_heads: of keys and values, on the device.
        queries: tokens of a sequence on the device.
        tokens: of the whole sequence.
        key_dim: elements of a query or key.
        value_dim: elements of a value.
        window: tokens that a query sees; 0 for all before it.
        is_backward: whether it is the backward, with 2.5 times the operations.
        is_causal: whether a query sees nothing behind it; if not, it sees all tokens.
    """

    batch: int
    heads: float
    kv_heads: float
    queries: float
    tokens: int
    key_dim: int
    value_dim: int
    window: int = 0
    is_backward: bool = False
    is_causal: bool = True

    @property
    def seen(self) -> float:
        """Tokens that a query sees in the mean."""
        if not self.is_causal:
            return self.tokens
        if 0 < self.window < self.tokens:
            return self.window * (1 - self.window / (2 * self.tokens))
        return self.tokens / 2

    @property
    def flops(self) -> float:
        """Operations, without those that a mask leaves out."""
        pairs = self.batch * self.heads * self.queries * self.seen
        return 2.0 * pairs * (self.key_dim + self.value_dim) * (2.5 if self.is_backward else 1.0)

    @property
    def moved_bytes(self) -> float:
        """Bytes read and written once."""
        heads = self.heads * (self.key_dim + self.value_dim)
        kv = self.kv_heads * (self.key_dim + self.value_dim) * self.tokens
        once = ELEMENT_BYTES * self.batch * (self.queries * heads + kv)
        return once * (2.5 if self.is_backward else 1.0)


class Scan(NamedTuple):
    """The scan of a state space with its convolution, in chunks of products.

    Attributes:
        rows: tokens on the device.
        inner: channels on the device.
        state: elements of a channel's state.
        chunk: tokens of a chunk.
        is_backward: whether it is the backward, with twice the operations and the forward again.
    """

    rows: float
    inner: float
    state: int
    chunk: int = 128
    is_backward: bool = False

    @property
    def flops(self) -> float:
        """Operations (Dao and Gu 2024, section 6, of the chunked form)."""
        once = 2.0 * self.rows * self.inner * (self.chunk + 2 * self.state)
        return once * (3.0 if self.is_backward else 1.0)

    @property
    def moved_bytes(self) -> float:
        """Bytes read and written, the convolution's included."""
        return ELEMENT_BYTES * self.rows * self.inner * 8 * (2.5 if self.is_backward else 1.0)


Access = Literal["in_order", "permuted", "loss"]
"""How elementwise work goes through memory: rows in order; rows gathered or scattered, as tokens for experts;
or the rows of logits of a loss, several times."""


class Moved(NamedTuple):
    """Elementwise work, which takes as long as its traffic."""

    moved_bytes: float
    flops: float = 0.0
    access: Access = "in_order"


class Exchange(NamedTuple):
    """A collective within a layer.

    Attributes:
        kind: what is exchanged.
        num_bytes: of the whole tensor that a device has after an all-gather or before a reduce-scatter or
            all-reduce; of an all-to-all, what a device sends, itself included; of a ring, what a device
            passes on at each of its steps.
        devices: that take part.
        span: neighbouring devices among which those are: a group within so many lies in one domain of fast
            links if they do.
        top_k: of an all-to-all of tokens: experts of a token, which bounds how many nodes it goes to.
    """

    kind: ExchangeKind
    num_bytes: float
    devices: int
    span: int
    top_k: int = 1


class Beside(NamedTuple):
    """A kernel with an exchange beside it: the longer of both counts."""

    kernel: AttentionCore | Product
    exchange: Exchange


Kernel = Product | AttentionCore | Scan | Moved | Exchange | Beside

KernelPrice = Callable[[Kernel], float]
"""Microseconds of a kernel on one device."""

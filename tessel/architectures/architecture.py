"""A language model as layers: of which products, vectors and experts each consists, and how many parameters.

Every part of a block names its linear products (inputs, outputs, and how tensor parallelism splits them) and
counts the parameters that are no matrices. Parameters, FLOPs and bytes all follow from that. A product is
split by `outputs` (column parallel), by `inputs` (row parallel) or not at all, as in Megatron-LM.

Checked in tests/tessel/architectures/test_families.py against transformers' modules and published totals.
Source: Shoeybi et al., Megatron-LM (2019), section 3; DeepSeek-AI, DeepSeek-V3 (2024), section 2; Dao and Gu,
Transformers are SSMs (2024), section 8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Split = Literal["outputs", "inputs", "none"]


class Linear(NamedTuple):
    """A product with a weight matrix.

    Attributes:
        inputs: columns of the weight.
        outputs: rows of the weight.
        split: over which of both tensor parallelism divides it.
        has_bias: whether a vector of `outputs` is added.
    """

    inputs: int
    outputs: int
    split: Split = "none"
    has_bias: bool = False

    @property
    def parameters(self) -> int:
        """Parameters of weight and bias."""
        return (self.inputs + self.has_bias) * self.outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention with grouped heads.

    Attributes:
        heads: of queries.
        kv_heads: of keys and values.
        head_dim: of each.
        window: tokens that a query sees, without `is_causal` those of its own part of so many; 0 for all.
        qkv_bias: whether queries, keys and values have biases.
        out_bias: whether the output has one.
        norm_parameters: of norms of queries and keys.
        has_sinks: whether each head has a sink.
        has_rotary: whether queries and keys are rotated, which makes copies of them.
        is_causal: whether a query sees nothing behind it.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    qkv_bias: bool = False
    out_bias: bool = False
    norm_parameters: int = 0
    has_sinks: bool = False
    has_rotary: bool = True
    is_causal: bool = True

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """Return the products: queries, keys and values in one, and the output."""
        inner = self.heads * self.head_dim
        return (
            Linear(hidden, inner + 2 * self.kv_heads * self.head_dim, "outputs", self.qkv_bias),
            Linear(inner, hidden, "inputs", self.out_bias),
        )

    def vectors(self, hidden: int) -> int:
        """Return the parameters that are no matrices."""
        del hidden
        return self.norm_parameters + self.has_sinks * self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention.

    Attributes:
        heads: of queries, keys and values.
        query_rank: of the compressed queries; 0 where they are not compressed.
        kv_rank: of the compressed keys and values.
        nope_dim: of a head's part without rotation.
        rope_dim: of the part with it, one for all heads of the keys.
        value_dim: of a head's values.
        has_bias: whether the compressions and the output have biases.
    """

    heads: int
    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    has_bias: bool = False

    @property
    def key_dim(self) -> int:
        """Elements of a head's query or key."""
        return self.nope_dim + self.rope_dim

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """Return the products; the compressions are the same on every device of a group."""
        queries = self.heads * self.key_dim
        ask: tuple[Linear, ...] = (Linear(hidden, queries, "outputs"),)
        if self.query_rank:
            ask = (
                Linear(hidden, self.query_rank, "none", self.has_bias),
                Linear(self.query_rank, queries, "outputs"),
            )
        return (
            *ask,
            Linear(hidden, self.kv_rank + self.rope_dim, "none", self.has_bias),
            Linear(self.kv_rank, self.heads * (self.nope_dim + self.value_dim), "outputs"),
            Linear(self.heads * self.value_dim, hidden, "inputs", self.has_bias),
        )

    def vectors(self, hidden: int) -> int:
        """Return the parameters of the norms of what is compressed."""
        del hidden
        return self.query_rank + self.kv_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """A Mamba mixer of the first or second version.

    Attributes:
        inner: channels.
        state: elements of each channel's state.
        conv: taps of the convolution.
        groups: of the second version: groups of heads that share what writes and reads the state.
        heads: of the second version.
        step_rank: of the first version: rank of the step sizes; 0 for the second version.
        conv_bias: whether the convolution has a bias.
        has_bias: whether projections have biases.
        has_inner_norms: of the first version: whether step, input and output of the state are normed.
    """

    inner: int
    state: int
    conv: int
    groups: int = 1
    heads: int = 0
    step_rank: int = 0
    conv_bias: bool = True
    has_bias: bool = False
    has_inner_norms: bool = False

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """Return the products."""
        if self.step_rank:
            return (
                Linear(hidden, 2 * self.inner, "outputs", self.has_bias),
                Linear(self.inner, self.step_rank + 2 * self.state, "inputs"),
                Linear(self.step_rank, self.inner, "outputs", has_bias=True),
                Linear(self.inner, hidden, "inputs", self.has_bias),
            )
        into = 2 * self.inner + 2 * self.groups * self.state + self.heads
        return (
            Linear(hidden, into, "outputs", self.has_bias),
            Linear(self.inner, hidden, "inputs", self.has_bias),
        )

    def vectors(self, hidden: int) -> int:
        """Return the parameters of the convolution, the scan and the inner norms."""
        del hidden
        channels = self.inner if self.step_rank else self.inner + 2 * self.groups * self.state
        convolution = channels * (self.conv + self.conv_bias)
        if self.step_rank:
            norms = (self.step_rank + 2 * self.state) * self.has_inner_norms
            return convolution + self.inner * (self.state + 1) + norms
        return convolution + 3 * self.heads + self.inner


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Two products with an activation between, or three where it is gated.

    Attributes:
        width: of what is between.
        is_gated: whether one half of the first product gates the other.
        has_bias: whether products have biases.
    """

    width: int
    is_gated: bool = True
    has_bias: bool = False

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """Return the products, the gate in one with the first."""
        return (
            Linear(hidden, self.width * (1 + self.is_gated), "outputs", self.has_bias),
            Linear(self.width, hidden, "inputs", self.has_bias),
        )

    def vectors(self, hidden: int) -> int:
        """Return 0: all parameters are of products."""
        del hidden
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routed experts, of which each token takes some, and experts that all tokens share.

    Attributes:
        count: of routed experts.
        shared: what every token takes as well, in one; None for nothing.
        has_shared_gate: whether a gate scales what is shared.
        router_bias: whether the router has a trained bias.
        latent: of the routed experts' input, where it is projected to fewer elements; 0 where it is not.
    """

    count: int
    top_k: int
    expert: FeedForward
    shared: FeedForward | None = None
    has_shared_gate: bool = False
    router_bias: bool = False
    latent: int = 0

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """Return the products of router, projections and what is shared."""
        found = [Linear(hidden, self.count, "none", self.router_bias)]
        if self.has_shared_gate:
            found.append(Linear(hidden, 1))
        if self.latent:
            found += [Linear(hidden, self.latent), Linear(self.latent, hidden)]
        if self.shared is not None:
            found += self.shared.linears(hidden)
        return tuple(found)

    def expert_linears(self, hidden: int) -> tuple[Linear, ...]:
        """Return the products of one routed expert."""
        return self.expert.linears(self.latent or hidden)

    def expert_parameters(self, hidden: int) -> int:
        """Return the parameters of all routed experts."""
        return self.count * sum(linear.parameters for linear in self.expert_linears(hidden))

    def vectors(self, hidden: int) -> int:
        """Return 0: all parameters are of products."""
        del hidden
        return 0


Part = Attention | LatentAttention | StateSpace | FeedForward | Experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One layer: parts one after the other, each with a norm before it and the residual around it.

    Attributes:
        hidden: elements of a token between layers.
        parts: in the order that they run.
        joint: products that prepare the input, such as the one that joins two streams before a layer that
            predicts a further token.
    """

    hidden: int
    parts: tuple[Part, ...]
    norm_parameters: int
    joint: tuple[Linear, ...] = ()

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All products but those of routed experts."""
        return (*self.joint, *(linear for part in self.parts for linear in part.linears(self.hidden)))

    @property
    def expert_parameters(self) -> int:
        """Parameters of routed experts."""
        return sum(part.expert_parameters(self.hidden) for part in self.parts if isinstance(part, Experts))

    @property
    def vector_parameters(self) -> int:
        """Parameters of norms and others that are no matrices."""
        return self.norm_parameters + sum(part.vectors(self.hidden) for part in self.parts)

    @property
    def parameters(self) -> int:
        """All parameters."""
        dense = sum(linear.parameters for linear in self.linears)
        return dense + self.vector_parameters + self.expert_parameters

    @property
    def used_parameters(self) -> float:
        """Parameters that one token is multiplied with or normed by."""
        spared = sum(
            part.expert_parameters(self.hidden) * (1 - part.top_k / part.count)
            for part in self.parts
            if isinstance(part, Experts)
        )
        return self.parameters - spared


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """What sees the pictures of a sequence, and gives the language model tokens to read.

    It stands in front of the language model as further layers of the chain: an embedding of patches, blocks
    whose attention sees patches before and behind, and a projector that merges neighbouring patches. A
    sequence holds the tokens that come of it beside those of its text.

    Attributes:
        patch: the product that embeds a patch's pixels.
        vectors: parameters beside that product: positions, or a norm.
        blocks: in the order that they run.
        projector: products, one after the other, from merged patches to the language model's tokens.
        projector_vectors: parameters of norms beside them.
        merged: patches that become one token.
        tokens: that the language model reads of a picture; 0 where that depends on the picture.
        is_frozen: whether blocks and the embedding of patches are not trained; the projector always is.
    """

    patch: Linear
    blocks: tuple[Block, ...]
    projector: tuple[Linear, ...]
    merged: int
    tokens: int
    vectors: int = 0
    projector_vectors: int = 0
    pictures: int = 1
    is_frozen: bool = False

    @property
    def hidden(self) -> int:
        """Elements of a patch between blocks."""
        return self.patch.outputs

    @property
    def patch_parameters(self) -> int:
        """Parameters of what embeds patches."""
        return self.patch.parameters + self.vectors

    @property
    def projector_parameters(self) -> int:
        """Parameters of the projector."""
        return sum(linear.parameters for linear in self.projector) + self.projector_vectors

    @property
    def parameters(self) -> int:
        """All parameters."""
        return (
            self.patch_parameters + sum(block.parameters for block in self.blocks) + self.projector_parameters
        )

    @property
    def patches(self) -> int:
        """Patches of a picture."""
        return self.tokens * self.merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model with an embedding, blocks and a head.

    Attributes:
        name: for messages and pictures.
        family: its `model_type`.
        hidden: elements of a token between layers.
        vocabulary: tokens that there are.
        blocks: in the order that they run.
        predictors: layers that predict further tokens, which share embedding and head.
        is_tied: whether the head's weight is the embedding's.
        positions: learned positions; 0 for none.
        norm_parameters: of the norm before the head.
        max_tokens: of a sequence, as the config says; 0 where it does not.
        tower: what sees pictures in front of it; None for text alone.
        notes: what the config says that is left out, a sentence each.
    """

    name: str
    family: str
    hidden: int
    vocabulary: int
    blocks: tuple[Block, ...]
    is_tied: bool
    norm_parameters: int
    predictors: tuple[Block, ...] = ()
    positions: int = 0
    max_tokens: int = 0
    tower: Tower | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def embedding_parameters(self) -> int:
        """Parameters of tokens and learned positions."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the head's weight, its own or the embedding's."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, without those of layers that predict further tokens."""
        tower = 0 if self.tower is None else self.tower.parameters
        return tower + self._sum(lambda block: block.parameters)

    @property
    def used_parameters(self) -> float:
        """Parameters that one token of text uses: `top_k` of the experts."""
        return self._sum(lambda block: block.used_parameters)

    def _sum(self, of_block: Callable[[Block], float]) -> int:
        ends = self.embedding_parameters + self.norm_parameters
        ends += 0 if self.is_tied else self.head_parameters
        return round(ends + sum(map(of_block, self.blocks)))

    @property
    def experts(self) -> int:
        """Most routed experts of a block; 0 for a model without any."""
        every = (part for block in self.blocks for part in block.parts if isinstance(part, Experts))
        return max((part.count for part in every), default=0)

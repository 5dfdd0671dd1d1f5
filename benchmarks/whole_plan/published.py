"""Models in their published sizes, with layer costs predicted from one measured profile.

GPT-3 6.7B (Brown et al., 2020) with its own 50 k words, 256 k and 1 M; mT5-XL and -XXL (Xue et al., 2021);
FLAVA (Singh et al., 2022). What is measured is GPT-3 2.7B on one H100 in float32
(`benchmarks/data/profiles/gpt-3-2.7b_h100.csv`, labels of NeuSight). From it come the rates of a block, a
head and an embedding, and a layer of another size is predicted to run at them:

    block      (products with weights + products of attention) / rate of a block
    head       its product / rate of a head
    embedding  elements that it looks up; backward: elements of its table
    backward   as much longer, and divided into halves, as the measured one's

What a block saves is the formula of Korthikanti et al. (2023, equation 1) times what the measured block has
of it. A layer over P devices takes a P-th of that and its all-reduces: two of a block in each direction, of
the head two numbers a row, and its input's gradient. Layers name the tensors that they read, make and relay,
so that the towers of a FLAVA, which read nothing of each other, are found to be branches; in a chain its text
tower relays what the image tower makes. Everything is *predicted*, and says so. Left out: kernels lose speed
as they get smaller, so that layers over eight devices are too fast here; and what an mT5's decoder relays of
its encoder. Checked in tests/benchmarks/test_whole_plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tessel.profiles.load import load_profile
from tessel.profiles.profile import StageCosts
from tuner.plan import Figure, LayersPlan, Link, ShardsPlan, StagePlan, TensorInfo, TiedParameter

PROFILE = Path(__file__).resolve().parents[1] / "data/profiles/gpt-3-2.7b_h100.csv"

TOKENS, WIDTH, HEADS, WORDS = 2048, 2560, 32, 50_257
"""Of the measured model; 32 blocks."""

FLOAT = 4

MEMORY_BYTES_PER_US = 2.7e6
"""Four fifths of an H100's 3.35 TB/s: what an optimizer's update is predicted to move."""

COUNTS = (2, 4, 8)
"""Devices over which layers are divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One transformer block.

    Attributes:
        width: of what passes through it.
        inner: columns of all heads together.
        heads: of its attention.
        feed_forward: hidden columns.
        is_gated: whether three matrices make its feed-forward layer, not two.
        tokens: that it runs on, over all samples.
        sequence: tokens of one sample, which see each other.
        seen: tokens of another sequence of a sample that it attends to as well; 0 for none.
    """

    width: int
    inner: int
    heads: int
    feed_forward: int
    tokens: int
    sequence: int
    is_gated: bool = False
    seen: int = 0

    @property
    def weights(self) -> int:
        """Count its weights."""
        attentions = 2 if self.seen else 1
        return self.width * (4 * self.inner * attentions + (3 if self.is_gated else 2) * self.feed_forward)

    @property
    def operations(self) -> float:
        """Count the floating-point operations of its forward."""
        return 2.0 * self.tokens * self.weights + 4.0 * self.tokens * (self.sequence + self.seen) * self.inner

    @property
    def saved(self) -> float:
        """Return the elements that it saves, by the formula for whole activations."""
        scores = 5.0 * self.heads * (self.sequence + self.seen)
        return self.tokens * (34.0 * self.width + scores)


MEASURED = Block(
    width=WIDTH, inner=WIDTH, heads=HEADS, feed_forward=4 * WIDTH, tokens=TOKENS, sequence=TOKENS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A layer on one device, beside the measured one.

    Attributes:
        name: of the layer.
        measured: the layer that it is like.
        forward: how many times its forward the forward takes.
        backward: the same of each of its backwards.
        weight_bytes: of its weights.
        saved_bytes: by number of devices, of a device.
        boundary_bytes: that it sends.
        reduced: by function, bytes of each all-reduce where it is divided.
    """

    name: str
    measured: StageCosts
    forward: float
    backward: float
    weight_bytes: int
    saved_bytes: Callable[[int], int]
    boundary_bytes: int
    reduced: dict[str, list[int]]

    def times_us(self, count: int) -> dict[str, float]:
        """Return the time of each function over so many devices, without all-reduces."""
        measured = self.measured
        times = {
            "forward": measured.forward_us * self.forward,
            "backward": (measured.backward_us or 0.0) * self.backward,
        }
        # An embedding's inputs need no gradient: its backward is its weight half.
        if measured.backward_input_us:
            times["backward_input"] = measured.backward_input_us * self.backward
            times["backward_weight"] = (measured.backward_weight_us or 0.0) * self.backward
        return {function: us / count for function, us in times.items()}


class Predictor:
    """Predicts layers from the measured ones.

    Args:
        link: between devices, for the all-reduces of divided layers.
    """

    def __init__(self, link: Link) -> None:
        (table,) = load_profile(PROFILE).tables
        self._embedding, self._block, self._head = table.costs[0], table.costs[1], table.costs[-1]
        self._link = link

    def block(self, block: Block, name: str) -> dict[int, StagePlan]:
        """Return a block whole, and over each number of devices, by that number."""
        times = block.operations / MEASURED.operations
        saved = self._block.saved_bytes * block.saved / MEASURED.saved
        sent = FLOAT * block.tokens * block.width
        reduced = [sent] * (3 if block.seen else 2)
        return self._each(
            _Layer(
                name=name,
                measured=self._block,
                forward=times,
                backward=times,
                weight_bytes=FLOAT * block.weights,
                saved_bytes=lambda count: int(saved / count),
                boundary_bytes=sent,
                reduced={"forward": reduced, "backward_input": reduced},
            )
        )

    def embedding(self, words: int, width: int, tokens: int, name: str) -> dict[int, StagePlan]:
        """Return a table that inputs look up; its gradient is as large as it is."""
        sent = FLOAT * tokens * width
        return self._each(
            _Layer(
                name=name,
                measured=self._embedding,
                forward=tokens * width / (TOKENS * WIDTH),
                backward=words * width / (WORDS * WIDTH),
                weight_bytes=FLOAT * words * width,
                saved_bytes=lambda _: 8 * tokens,
                boundary_bytes=sent,
                reduced={"forward": [sent]},
            )
        )

    def head(self, words: int, width: int, tokens: int, name: str) -> dict[int, StagePlan]:
        """Return the product with a table of words, and the cross-entropy of its logits."""
        times = tokens * width * words / (TOKENS * WIDTH * WORDS)
        return self._each(
            _Layer(
                name=name,
                measured=self._head,
                forward=times,
                backward=times,
                weight_bytes=FLOAT * words * width,
                saved_bytes=lambda count: FLOAT * tokens * (words // count + width),
                boundary_bytes=0,
                reduced={"forward": [FLOAT * tokens] * 2, "backward_input": [FLOAT * tokens * width]},
            )
        )

    def _each(self, layer: _Layer) -> dict[int, StagePlan]:
        return {count: self._over(layer, count) for count in (1, *COUNTS)}

    def _over(self, layer: _Layer, count: int) -> StagePlan:
        """Return a layer over so many devices."""
        times = layer.times_us(count)
        sums = {
            function: sum(self._link.all_reduce_us(size, count) for size in sizes) if count > 1 else 0.0
            for function, sizes in layer.reduced.items()
        }
        sums["backward"] = sums.get("backward_input", 0.0)
        figures = {
            function: Figure(latency_us=us + sums.get(function, 0.0), source="predicted")
            for function, us in times.items()
        }
        saved = layer.saved_bytes(count)
        collective_us = {function: sums.get(function, 0.0) for function in times}
        return StagePlan(
            name="",
            layers=(layer.name,),
            inputs=(),
            outputs=(),
            relayed=(),
            parameters=(layer.name,),
            forward=figures["forward"],
            backward=figures["backward"],
            backward_input=figures.get("backward_input"),
            backward_weight=figures.get("backward_weight"),
            weight_bytes=layer.weight_bytes // count,
            saved_bytes=saved,
            saved_for_weight_bytes=saved,
            boundary_bytes=layer.boundary_bytes,
            shards=None if count == 1 else ShardsPlan(num_shards=count, axes={}, collective_us=collective_us),
        )


def published_models(link: Link, *, training: bool = True) -> Iterator[LayersPlan]:
    """Yield every model.

    Args:
        link: between devices, for the all-reduces of divided layers.
        training: whether layers have a backward.
    """
    predictor = Predictor(link)
    models = [
        *(
            _gpt3(predictor, words, f"gpt3-6.7b-words_{suffix}")
            for words, suffix in ((50_257, "50k"), (262_144, "256k"), (1_048_576, "1m"))
        ),
        _mt5(predictor, "mt5-xl", width=2048, heads=32, feed_forward=5120),
        _mt5(predictor, "mt5-xxl", width=4096, heads=64, feed_forward=10_240),
        _flava(predictor),
    ]
    yield from models if training else map(for_inference, models)


def for_inference(layers: LayersPlan) -> LayersPlan:
    """Return the same layers without backwards and what is saved for them."""

    def forward_alone(stage: StagePlan) -> StagePlan:
        return msgspec.structs.replace(
            stage,
            backward=None,
            backward_input=None,
            backward_weight=None,
            saved_bytes=0,
            saved_for_weight_bytes=0,
        )

    return msgspec.structs.replace(
        layers,
        model=f"{layers.model}-inference",
        training=False,
        layers=tuple(map(forward_alone, layers.layers)),
        shards={
            count: (forward_alone(first), forward_alone(last))
            for count, (first, last) in layers.shards.items()
        },
        update=None,
        tensor_parallel={
            count: tuple(map(forward_alone, stages)) for count, stages in layers.tensor_parallel.items()
        },
    )


def _gpt3(predictor: Predictor, words: int, name: str) -> LayersPlan:
    """32 blocks of width 4096, 2048 tokens; the head is the embedding."""
    block = Block(width=4096, inner=4096, heads=32, feed_forward=16_384, tokens=2048, sequence=2048)
    layers = [predictor.embedding(words, 4096, 2048, "embedding")]
    layers += [predictor.block(block, f"block{number}") for number in range(32)]
    layers += [predictor.head(words, 4096, 2048, "head")]
    return _plan(name, layers, tied=((0, len(layers) - 1),))


def _mt5(predictor: Predictor, name: str, *, width: int, heads: int, feed_forward: int) -> LayersPlan:
    """24 blocks of encoder and decoder each, 1024 tokens; both embeddings are one table, the head another."""
    words, tokens = 250_112, 1024
    encoder = Block(
        width=width,
        inner=64 * heads,
        heads=heads,
        feed_forward=feed_forward,
        is_gated=True,
        tokens=tokens,
        sequence=tokens,
    )
    decoder = replace(encoder, seen=tokens)
    layers = [predictor.embedding(words, width, tokens, "encoder.embedding")]
    layers += [predictor.block(encoder, f"encoder.block{number}") for number in range(24)]
    layers += [predictor.embedding(words, width, tokens, "decoder.embedding")]
    layers += [predictor.block(decoder, f"decoder.block{number}") for number in range(24)]
    layers += [predictor.head(words, width, tokens, "head")]
    return _plan(name, layers, tied=((0, 25),))


def _flava(predictor: Predictor) -> LayersPlan:
    """Image and text encoder of 12 blocks each that read nothing of each other, and 6 blocks over both.

    Width 768, 32 samples; the loss is of the words, which both decide.
    """
    samples = 32

    def block(sequence: int) -> Block:
        return Block(
            width=768,
            inner=768,
            heads=12,
            feed_forward=3072,
            tokens=samples * sequence,
            sequence=sequence,
        )

    layers = [predictor.block(block(197), f"image.block{number}") for number in range(12)]
    layers += [predictor.embedding(30_522, 768, samples * 77, "text.embedding")]
    layers += [predictor.block(block(77), f"text.block{number}") for number in range(12)]
    layers += [predictor.block(block(275), f"both.block{number}") for number in range(6)]
    layers += [predictor.head(30_522, 768, samples * 77, "head")]
    text, both = 12, 25
    reads = _of_a_chain(len(layers))
    reads[text], reads[both] = (), (text - 1, both - 1)
    return _plan("flava", layers, tied=(), reads=reads)


def _plan(
    name: str,
    layers: list[dict[int, StagePlan]],
    *,
    tied: tuple[tuple[int, int], ...],
    reads: Sequence[Sequence[int]] | None = None,
) -> LayersPlan:
    """Return the document of a model.

    Args:
        name: of the model.
        layers: each by the number of devices it is divided over.
        tied: layers that hold one and the same weight.
        reads: of each layer, the layers whose results it reads, all before it; the one before if left out.
    """
    reads = reads or _of_a_chain(len(layers))
    made = [
        TensorInfo(
            name=f"{layer[1].layers[0]}.result",
            # All that it hands on, as so many floats.
            shape=(layer[1].boundary_bytes // FLOAT,),
            dtype="float32",
            num_bytes=layer[1].boundary_bytes,
        )
        for layer in layers
    ]

    def over(count: int) -> tuple[StagePlan, ...]:
        return tuple(_joined_up(layer[count], number, made, reads) for number, layer in enumerate(layers))

    has_words = layers[0][1].backward_input is None  # an embedding comes first
    updated = 16 << 20
    return LayersPlan(
        model=name,
        device_model="NVIDIA H100 (predicted)",
        training=True,
        batch=1,
        layers=over(1),
        tied=tuple(
            tuple(TiedParameter(layers[number][1].parameters[0], number) for number in group)
            for group in tied
        ),
        shards={count: (over(count)[0], over(count)[-1]) for count in COUNTS} if has_words else {},
        undivided="" if has_words else "the first layer holds no words",
        update=Figure(latency_us=3 * updated / MEMORY_BYTES_PER_US, source="predicted"),
        updated_bytes=updated,
        update_moves=3,
        tensor_parallel={count: over(count) for count in COUNTS},
    )


def _of_a_chain(num_layers: int) -> list[tuple[int, ...]]:
    """Return what each layer reads of a chain: the one before it."""
    return [(number - 1,) if number else () for number in range(num_layers)]


def _joined_up(
    layer: StagePlan, number: int, made: Sequence[TensorInfo], reads: Sequence[Sequence[int]]
) -> StagePlan:
    """Return a layer with its number and its tensors; it relays what is made before it and read behind it."""
    relayed = [
        tensor
        for maker, tensor in enumerate(made[:number])
        if any(maker in later for later in reads[number + 1 :])
    ]
    return msgspec.structs.replace(
        layer,
        name=f"stage{number}",
        inputs=tuple(made[maker] for maker in reads[number]),
        outputs=(made[number],),
        relayed=tuple(tensor.name for tensor in relayed),
        boundary_bytes=made[number].num_bytes + sum(tensor.num_bytes for tensor in relayed),
    )

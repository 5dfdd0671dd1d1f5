"""Two towers after FLAVA (Singh et al., 2022): one for the image, one for the text, and one over both.

The towers share nothing until the multimodal encoder reads both, so a pipeline may run them on different
devices at once. For training, `labels` says of each pair which of the classes it is (FLAVA's image-text
matching has two), and the loss is the cross-entropy. Norms come before each block, as in FLAVA.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import relax
from tvm.relax.frontend import nn

from tuner.frontend.emission import Layer, emit, emit_model
from tuner.frontend.layers import (
    CrossEntropy,
    Embedding,
    LayerNorm,
    Linear,
    PositionEmbedding,
    SelfAttention,
)
from tuner.frontend.model import InputSpec, Model
from tuner.frontend.shapes import input_shapes, require_positions

_NUM_CLASSES = 2
_EPSILON = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    num_tower_layers: int
    num_joint_layers: int
    width: int
    num_heads: int
    image: int = 224
    patch: int = 16
    vocabulary: int = 30522
    num_positions: int = 512
    length: int = 77


_SIZES = {
    "tiny": _Size(
        num_tower_layers=2,
        num_joint_layers=2,
        width=64,
        num_heads=4,
        image=32,
        patch=8,
        vocabulary=512,
        num_positions=64,
        length=16,
    ),
    "base": _Size(num_tower_layers=12, num_joint_layers=6, width=768, num_heads=12),
}
SIZES = tuple(_SIZES)
DEFAULT_SIZE = "base"


def load(size_name: str, *, shapes: Mapping[str, tuple[int, ...]], batch: int, training: bool) -> Model:
    """Return the model over `image` (batch, 3, height, width) and `input_ids`, and `labels` (batch,).

    Raises:
        ValueError: the batches differ, the text is too long, or the image is not whole patches.
    """
    size = _SIZES[size_name]
    name = f"flava:{size_name}"
    defaults = {"image": (batch, 3, size.image, size.image), "input_ids": (batch, size.length)}
    chosen = input_shapes(name, defaults, shapes)
    image, text = chosen["image"], chosen["input_ids"]
    if image[0] != text[0]:
        raise ValueError(
            f"image has batch {image[0]} and input_ids {text[0]}, but {name} reads pairs; give one batch"
        )
    if image[1:] != (3, size.image, size.image):
        raise ValueError(
            f"image is {image[1:]}, but {name} has positions for (3, {size.image}, {size.image}); "
            "change only the batch"
        )
    require_positions(name, text[1], size.num_positions)
    inputs = [
        InputSpec(name="image", shape=image, dtype="float32"),
        InputSpec(name="input_ids", shape=text, dtype="int64", high=size.vocabulary),
    ]
    if training:
        inputs.append(InputSpec(name="labels", shape=(text[0],), dtype="int64", high=_NUM_CLASSES))
    return emit_model(name, _Flava(size), inputs, training=training)


class _Flava(Layer):
    def __init__(self, size: _Size) -> None:
        self.image_model = _ImageTower(size)
        self.text_model = _TextTower(size)
        self.image_to_mm_projection = Linear(size.width, size.width)
        self.text_to_mm_projection = Linear(size.width, size.width)
        self.multimodal_model = _Encoder(size, size.num_joint_layers)
        self.head = _PoolingHead(size)
        self.loss = CrossEntropy()

    def forward(self, image: nn.Tensor, input_ids: nn.Tensor, labels: nn.Tensor | None = None) -> nn.Tensor:
        parts = [
            self.image_to_mm_projection(self.image_model(image)),
            self.text_to_mm_projection(self.text_model(input_ids)),
        ]
        logits = self.head(self.multimodal_model(nn.op.concat(parts, dim=1)))
        return logits if labels is None else self.loss(logits, labels)


class _ImageTower(Layer):
    def __init__(self, size: _Size) -> None:
        self.patch_embeddings = _Patches(size)
        self.position_embeddings = PositionEmbedding((size.image // size.patch) ** 2, size.width)
        self.encoder = _Encoder(size, size.num_tower_layers)

    def forward(self, image: nn.Tensor) -> nn.Tensor:
        patches = self.patch_embeddings(image)
        return self.encoder(nn.op.add(patches, self.position_embeddings(patches.shape[1])))


class _Patches(Layer):
    """Cut the image into squares and project each: a convolution whose stride is its kernel, as a product."""

    def __init__(self, size: _Size) -> None:
        self.patch = size.patch
        self.projection = Linear(3 * size.patch * size.patch, size.width)

    def forward(self, image: nn.Tensor) -> nn.Tensor:
        batch, channels, height, width = image.shape
        rows, columns = height // self.patch, width // self.patch
        squares = nn.op.reshape(image, (batch, channels, rows, self.patch, columns, self.patch))
        squares = nn.op.permute_dims(squares, [0, 2, 4, 1, 3, 5])
        return self.projection(
            nn.op.reshape(squares, (batch, rows * columns, channels * self.patch * self.patch))
        )


class _TextTower(Layer):
    def __init__(self, size: _Size) -> None:
        self.word_embeddings = Embedding(size.vocabulary, size.width)
        self.position_embeddings = PositionEmbedding(size.num_positions, size.width)
        self.norm = LayerNorm(size.width, epsilon=_EPSILON)
        self.encoder = _Encoder(size, size.num_tower_layers)

    def forward(self, input_ids: nn.Tensor) -> nn.Tensor:
        words = nn.op.add(self.word_embeddings(input_ids), self.position_embeddings(input_ids.shape[1]))
        return self.encoder(self.norm(words))


class _Encoder(Layer):
    def __init__(self, size: _Size, num_layers: int) -> None:
        self.layer = nn.ModuleList([_Block(size) for _ in range(num_layers)])
        self.norm = LayerNorm(size.width, epsilon=_EPSILON)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        for block in self.layer:
            x = block(x)
        return self.norm(x)


class _Block(Layer):
    def __init__(self, size: _Size) -> None:
        self.norm_before = LayerNorm(size.width, epsilon=_EPSILON)
        self.attention = SelfAttention(size.width, size.num_heads)
        self.norm_after = LayerNorm(size.width, epsilon=_EPSILON)
        self.intermediate = Linear(size.width, 4 * size.width)
        self.output = Linear(4 * size.width, size.width)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        x = nn.op.add(x, self.attention(self.norm_before(x)))
        return nn.op.add(x, self.output(nn.op.gelu(self.intermediate(self.norm_after(x)))))


class _PoolingHead(Layer):
    """Average over all positions, then tell the classes apart."""

    def __init__(self, size: _Size) -> None:
        self.dense = Linear(size.width, size.width)
        self.classifier = Linear(size.width, _NUM_CLASSES)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        pooled = emit(relax.op.mean(x._expr, axis=[1]), "pooled")
        return self.classifier(nn.op.tanh(self.dense(pooled)))

"""Convolutions, pooling, normalisation, products, attention, activations and losses as torch has them."""

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


def randomized(module):
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5) if "var" in name else tensor.normal_(0, 0.3)
    return module


class First(nn.Module):
    """The first of what a layer gives."""

    def __init__(self, layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs):
        return self.layer(*inputs)[0]


def test_convolutions_are_torchs(assert_as_torch, draws) -> None:
    line, image, volume = draws(2, 4, 9), draws(2, 4, 7, 6), draws(1, 2, 4, 5, 4)
    layers = {
        "strided": (nn.Conv2d(4, 6, 3, stride=2, padding=1), image),
        "groups": (nn.Conv2d(4, 8, (3, 2), groups=2, dilation=(1, 2)), image),
        "depthwise": (nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), image),
        "same of an even kernel": (nn.Conv2d(4, 3, 4, padding="same"), image),
        "of one example": (nn.Conv2d(4, 3, 3), image[0]),
        "of one line": (nn.Conv1d(4, 3, 3), line[0]),
        "line": (nn.Conv1d(4, 5, 3, stride=2, padding=2, padding_mode="circular"), line),
        "volume": (nn.Conv3d(2, 3, 2, padding=1), volume),
        "transposed": (nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1), image),
        "transposed line": (nn.ConvTranspose1d(4, 6, 4, stride=3), line),
        "transposed groups": (nn.ConvTranspose2d(4, 6, 3, groups=2), image),
        "half": (nn.Conv2d(4, 3, 3).half(), image.half()),
    }
    assert_as_torch({name: (randomized(layer), (x,)) for name, (layer, x) in layers.items()})


def test_pooling_is_torchs(assert_as_torch, draws) -> None:
    line, image = draws(2, 3, 11), draws(2, 3, 9, 7)
    layers = {
        "max": nn.MaxPool2d(3, 2, 1),
        "max up": nn.MaxPool2d(2, ceil_mode=True),
        "max dilated": nn.MaxPool2d(2, 1, dilation=2),
        "mean": nn.AvgPool2d(3, 2, 1),
        "mean of what is there": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        "mean up": nn.AvgPool2d(2, ceil_mode=True),
        "mean by a number": nn.AvgPool2d(2, divisor_override=3),
        "to an extent": nn.AdaptiveAvgPool2d((4, 3)),
        "largest to an extent": nn.AdaptiveMaxPool2d((4, 7)),
        "largest of all": nn.AdaptiveMaxPool2d(1),
    }
    cases = {name: (layer, (image,)) for name, layer in layers.items()}
    cases |= {f"{name} of one": (layers[name], (image[0],)) for name in ("max", "mean", "to an extent")}
    for name, layer in {
        "max": nn.MaxPool1d(3),
        "mean": nn.AvgPool1d(3, 2),
        "to": nn.AdaptiveAvgPool1d(4),
    }.items():
        cases[f"{name} of a line"] = layer, (line,)
    assert_as_torch(cases)


def test_normalization_is_torchs(assert_as_torch, draws) -> None:
    image, tokens = draws(2, 6, 5, 4), draws(3, 5, 8)
    layers = {
        "layer": (nn.LayerNorm(8), tokens),
        "layer without scale": (nn.LayerNorm(8, elementwise_affine=False), tokens),
        "layer without shift": (nn.LayerNorm(8, bias=False), tokens),
        "layer over two axes": (nn.LayerNorm((5, 8)), tokens),
        "root mean square": (nn.RMSNorm(8), tokens),
        "groups": (nn.GroupNorm(3, 6), image),
        "groups without scale": (nn.GroupNorm(2, 6, affine=False), image),
        "groups of channels": (nn.GroupNorm(2, 6), image[:, :, 0, 0]),
        "instance": (nn.InstanceNorm2d(6, affine=True), image),
        "instance without scale": (nn.InstanceNorm2d(6), image),
        "batch": (nn.BatchNorm2d(6), image),
        "batch without scale": (nn.BatchNorm2d(6, affine=False, eps=0.1), image),
        "batch of a line": (nn.BatchNorm1d(5), tokens),
        "local response": (nn.LocalResponseNorm(3), image),
    }
    assert_as_torch({name: (randomized(layer), (x,)) for name, (layer, x) in layers.items()})


def test_products_are_torchs(assert_as_torch, draws) -> None:
    a, b, v = draws(4, 5), draws(5, 3), draws(5)
    batch = draws(2, 4, 5)
    ends = torch.tensor([2, 2, 7])
    cases = {
        "matrix": (torch.mm, (a, b)),
        "broadcast": (torch.matmul, (batch, b)),
        "vector": (torch.matmul, (batch, v)),
        "dot": (torch.dot, (v, v)),
        "whole numbers": (torch.mm, ((a * 3).long(), (b * 3).long())),
        "sum and product": (lambda x, y, z: torch.addmm(x, y, z, beta=0.5, alpha=2), (draws(4, 3), a, b)),
        "outer": (torch.outer, (v, v)),
        "einsum": (lambda x, y: torch.einsum("bij,kj->bki", x, y), (batch, a)),
        "bilinear": (randomized(nn.Bilinear(5, 3, 4)), (draws(2, 5), draws(2, 3))),
        "distances": (torch.cdist, (batch, batch + 1)),
        "city distances": (lambda x: torch.cdist(x, x * 2, p=1.0), (a,)),
        "cubic distances": (lambda x: torch.cdist(x, x * 2, p=3.0), (a,)),
        "half": (torch.mm, (a.half(), b.half())),
    }
    transformers = pytest.importorskip("transformers.integrations.moe")
    assert transformers is not None
    grouped = torch.ops.transformers.grouped_mm_fallback
    cases["groups of rows"] = lambda x, w, e: grouped(x, w, offs=e), (draws(8, 5), draws(3, 5, 4), ends)
    assert_as_torch(cases)


def test_attention_is_torchs(assert_as_torch, draws) -> None:
    q, k = draws(2, 4, 5, 8), draws(2, 2, 7, 8)
    k4, mask = draws(2, 4, 7, 8), draws(2, 1, 5, 7, dtype="bool")
    mask[:, :, 0] = False  # a row that attends to nothing gives zeros
    attend = F.scaled_dot_product_attention
    known = mask[0, 0].clone()
    cases = {
        "plain": (attend, (q, k4, k4)),
        "scaled": (lambda q, k: attend(q, k, k, scale=0.2), (q, k4)),
        "causal": (lambda q, k: attend(q, k, k, is_causal=True), (q, k4)),
        "groups": (lambda q, k: attend(q, k, k, enable_gqa=True), (q, k)),
        "truth values": (lambda q, k, m: attend(q, k, k, attn_mask=m), (q, k4, mask)),
        "known truth values": (lambda q, k: attend(q, k, k, attn_mask=known), (q, k4)),
        "added": (lambda q, k, m: attend(q, k, k, attn_mask=m), (q, k4, draws(5, 7))),
        "three axes": (attend, (q[0], k4[0], k4[0])),
    }
    assert_as_torch(cases)


def test_activations_are_torchs(assert_as_torch, draws) -> None:
    x = draws(3, 8) * 4
    layers = (
        nn.ReLU(), nn.ReLU6(), nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU(), nn.Mish(), nn.ELU(0.7),
        nn.CELU(0.5), nn.SELU(), nn.LeakyReLU(0.2), nn.PReLU(), nn.Hardtanh(-2, 1), nn.Hardsigmoid(),
        nn.Hardswish(), nn.Hardshrink(1.0), nn.Softshrink(1.0), nn.Softplus(2.0, 3.0), nn.Softsign(),
        nn.Tanhshrink(), nn.Threshold(0.5, -1.0), nn.LogSigmoid(), nn.GLU(), nn.Softmax(-1), nn.LogSoftmax(0),
    )  # fmt: skip
    cases = {f"{type(layer).__name__} {index}": (layer, (x,)) for index, layer in enumerate(layers)}
    cases["softmax in another type"] = lambda x: x.softmax(-1, dtype=torch.float64), (x,)
    cases["relu of whole numbers"] = torch.relu, (draws(5, dtype="int32"),)
    cases["softmax of one number"] = lambda x: x.softmax(0), (torch.tensor(2.0),)
    assert_as_torch(cases)


def test_losses_are_torchs(assert_as_torch, draws) -> None:
    x, classes, weight = draws(4, 5), torch.tensor([1, 0, 4, 2]), draws(5).abs()
    y = draws(4, 5)
    cases = {
        "cross-entropy": (F.cross_entropy, (x, classes)),
        "weighted": (lambda x, c, w: F.cross_entropy(x, c, w), (x, classes, weight)),
        "smoothed": (lambda x, c: F.cross_entropy(x, c, label_smoothing=0.1), (x, classes)),
        "probabilities": (lambda x, y: F.cross_entropy(x, y.softmax(1)), (x, y)),
        "likelihood": (lambda x, c: F.nll_loss(x, c, reduction="sum"), (x, classes)),
        "absolute": (F.l1_loss, (x, y)),
        "smooth": (F.smooth_l1_loss, (x, y)),
        "huber": (lambda x, y: F.huber_loss(x, y, delta=0.5), (x, y)),
        "binary": (lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), (x, y)),
        "binary of certain halves": (
            lambda x, y: F.binary_cross_entropy(x, y, reduction="none"),
            (torch.tensor([0.0, 1.0, 0.0, 1.0, 0.25]).half(), torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]).half()),
        ),
        "divergence": (lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), (x, y)),
        "cosine": (F.cosine_similarity, (x, y)),
    }
    assert_as_torch(cases)


def test_pictures_are_resized_as_by_torch(assert_as_torch, draws) -> None:
    x, grid = draws(1, 2, 5, 6), draws(1, 3, 4, 2) * 0.7
    cases = {
        "to an odd size": (lambda x: F.interpolate(x, size=(7, 8)), (x,)),
        "by a factor": (lambda x: F.interpolate(x, scale_factor=2.0), (x,)),
        "bilinear": (lambda x: F.interpolate(x, size=(7, 8), mode="bilinear"), (x,)),
        "corners": (lambda x: F.interpolate(x, size=(3, 9), mode="bilinear", align_corners=True), (x,)),
        "bicubic": (lambda x: F.interpolate(x, size=(7, 4), mode="bicubic"), (x,)),
        "sampled": (lambda x, g: F.grid_sample(x, g, align_corners=False), (x, grid)),
        "sampled near by": (lambda x, g: F.grid_sample(x, g, mode="nearest", align_corners=True), (x, grid)),
        "columns": (lambda x: F.unfold(x, 3, padding=1, stride=2), (x,)),
        "folded": (lambda x: F.fold(F.unfold(x, 2), (5, 6), 2), (x,)),
        "pixels": (lambda x: F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2), (x,)),
        "pixels back": (lambda x: F.pixel_unshuffle(x[..., :4, :], 2), (x,)),
        "channels": (lambda x: F.channel_shuffle(x, 2), (x,)),
    }
    assert_as_torch(cases)


def test_recurrent_networks_are_torchs(assert_as_torch, draws) -> None:
    x = draws(2, 4, 5)
    layers = {
        "two layers": nn.LSTM(5, 3, 2, batch_first=True),
        "both ways": nn.GRU(5, 3, 2, batch_first=True, bidirectional=True),
        "projected": nn.LSTM(5, 4, proj_size=2),
        "plain": nn.RNN(5, 3, nonlinearity="relu"),
    }
    assert_as_torch({name: (First(layer), (x,)) for name, layer in layers.items()})

"""Models of the zoo that see images, against the same mathematics in torch's own functions."""

from collections.abc import Mapping

import numpy as np
import pytest

from tuner.frontend import load_model, random_inputs, random_parameters

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

Parameters = Mapping[str, "torch.Tensor"]


def normed_convolution(x, p: Parameters, name: str, *, stride: int = 1, groups: int = 1):
    weight = p[f"{name}.conv.weight"]
    x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2, groups=groups)
    statistics = [p.get(f"{name}.norm.running_mean"), p.get(f"{name}.norm.running_var")]
    scale = [p[f"{name}.norm.weight"], p[f"{name}.norm.bias"]]
    return F.batch_norm(x, *statistics, *scale, training=statistics[0] is None)


def resnet_tiny(p: Parameters, image):
    x = F.max_pool2d(normed_convolution(image, p, "stem", stride=2).relu(), 3, 2, 1)
    for name, stride in (("stages.0.blocks.0", 1), ("stages.1.blocks.0", 2), ("stages.1.blocks.1", 1)):
        y = normed_convolution(x, p, f"{name}.narrow").relu()
        y = normed_convolution(y, p, f"{name}.filter", stride=stride).relu()
        y = normed_convolution(y, p, f"{name}.widen")
        if f"{name}.shortcut.conv.weight" in p:
            x = normed_convolution(x, p, f"{name}.shortcut", stride=stride)
        x = (x + y).relu()
    return x.mean((2, 3)) @ p["fc.weight"] + p["fc.bias"]


def mobilenet_tiny(p: Parameters, image):
    x = F.relu6(normed_convolution(image, p, "stem", stride=2))
    for index, stride in enumerate((1, 2, 1, 2)):
        name, y = f"blocks.{index}", x
        if f"{name}.widen.conv.weight" in p:
            y = F.relu6(normed_convolution(y, p, f"{name}.widen"))
        y = F.relu6(normed_convolution(y, p, f"{name}.depthwise", stride=stride, groups=y.shape[1]))
        y = normed_convolution(y, p, f"{name}.narrow")
        x = x + y if x.shape == y.shape else y
    x = F.relu6(normed_convolution(x, p, "last"))
    return x.mean((2, 3)) @ p["classifier.weight"] + p["classifier.bias"]


def linear(x, p: Parameters, name: str):
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def norm(x, p: Parameters, name: str):
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], 1e-12)


def encoder(x, p: Parameters, name: str):
    def heads(x):
        return x.unflatten(-1, (4, -1)).transpose(1, 2)

    for index in range(2):
        block = f"{name}.layer.{index}"
        normed = norm(x, p, f"{block}.norm_before")
        query, key, value = (
            heads(linear(normed, p, f"{block}.attention.{part}")) for part in ("query", "key", "value")
        )
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + linear(mixed, p, f"{block}.attention.output")
        hidden = F.gelu(linear(norm(x, p, f"{block}.norm_after"), p, f"{block}.intermediate"))
        x = x + linear(hidden, p, f"{block}.output")
    return norm(x, p, f"{name}.norm")


def flava_tiny(p: Parameters, image, input_ids):
    # A projection of squares is a convolution whose stride is its kernel.
    filters = p["image_model.patch_embeddings.projection.weight"].T.reshape(-1, 3, 8, 8)
    bias = p["image_model.patch_embeddings.projection.bias"]
    patches = F.conv2d(image, filters, bias, stride=8).flatten(2).transpose(1, 2)
    seen = encoder(patches + p["image_model.position_embeddings.weight"], p, "image_model.encoder")
    words = p["text_model.word_embeddings.weight"][input_ids]
    words = words + p["text_model.position_embeddings.weight"][: input_ids.shape[1]]
    read = encoder(norm(words, p, "text_model.norm"), p, "text_model.encoder")
    both = [linear(seen, p, "image_to_mm_projection"), linear(read, p, "text_to_mm_projection")]
    pooled = encoder(torch.cat(both, 1), p, "multimodal_model").mean(1)
    return linear(torch.tanh(linear(pooled, p, "head.dense")), p, "head.classifier")


REFERENCES = {"resnet": resnet_tiny, "mobilenet": mobilenet_tiny, "flava": flava_tiny}


def as_torch(arrays: Mapping[str, np.ndarray]) -> dict[str, "torch.Tensor"]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_model_computes_what_torch_computes(name: str, run_model, assert_close) -> None:
    model = load_model(f"{name}:tiny", batch=2)
    parameters, inputs = random_parameters(model, 0), random_inputs(model, 1)
    expected = REFERENCES[name](as_torch(parameters), *map(torch.from_numpy, inputs))
    assert_close(run_model(model, inputs, parameters)[0], expected.numpy())


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "resnet" else pytest.mark.slow) for name in sorted(REFERENCES)],
)
def test_model_for_training_returns_the_mean_cross_entropy(name: str, run_model, assert_close) -> None:
    model = load_model(f"{name}:tiny", batch=3, training=True)
    parameters, inputs = random_parameters(model, 0), random_inputs(model, 1)
    *data, labels = map(torch.from_numpy, inputs)
    expected = F.cross_entropy(REFERENCES[name](as_torch(parameters), *data), labels)
    assert_close(run_model(model, inputs, parameters)[0], expected.numpy())


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [("resnet:50", 25_557_032), ("mobilenet:v2", 3_504_872)],
)
def test_model_has_the_published_number_of_trained_parameters(name: str, num_parameters: int) -> None:
    model = load_model(name, training=True)
    variables = model.module["main"].params[len(model.inputs) :]
    assert sum(int(np.prod([int(n) for n in v.ty.shape])) for v in variables) == num_parameters


def test_extents_of_an_image_may_be_chosen_and_its_channels_not() -> None:
    assert load_model("resnet:tiny", shapes={"image": (2, 3, 48, 40)}).inputs[0].shape == (2, 3, 48, 40)
    with pytest.raises(ValueError, match="image has 4 channels"):
        load_model("resnet:tiny", shapes={"image": (2, 4, 48, 40)})


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"image": (2, 3, 32, 32)}, "batch 2 and input_ids 1"),
        ({"image": (1, 3, 40, 40)}, "change only the batch"),
        ({"input_ids": (1, 65)}, "65 positions"),
    ],
)
def test_shape_that_the_two_towers_cannot_take_is_refused(shapes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_model("flava:tiny", shapes=shapes)

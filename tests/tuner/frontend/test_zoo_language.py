"""Language models of the zoo, against the same mathematics written in torch's own functions."""

import math
from collections.abc import Mapping

import numpy as np
import pytest

from tuner.frontend import load_model, random_inputs, random_parameters
from tuner.frontend.zoo.mt5 import relative_buckets

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

Parameters = Mapping[str, "torch.Tensor"]


def linear(x, p: Parameters, name: str):
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def norm(x, p: Parameters, name: str, epsilon: float):
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], epsilon)


def attention(query, key, value, num_heads: int, causal: bool):
    def heads(x):
        return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)

    mixed = F.scaled_dot_product_attention(heads(query), heads(key), heads(value), is_causal=causal)
    return mixed.transpose(1, 2).flatten(2)


def gpt2(p: Parameters, input_ids, num_layers: int, num_heads: int):
    x = p["transformer.wte.weight"][input_ids] + p["transformer.wpe.weight"][: input_ids.shape[1]]
    for index in range(num_layers):
        block = f"transformer.h.{index}"
        query, key, value = linear(norm(x, p, f"{block}.ln_1", 1e-5), p, f"{block}.attn.c_attn").chunk(3, -1)
        x = x + linear(attention(query, key, value, num_heads, True), p, f"{block}.attn.c_proj")
        hidden = linear(norm(x, p, f"{block}.ln_2", 1e-5), p, f"{block}.mlp.c_fc")
        x = x + linear(F.gelu(hidden, approximate="tanh"), p, f"{block}.mlp.c_proj")
    return norm(x, p, "transformer.ln_f", 1e-5) @ p["transformer.wte.weight"].T


def bert(p: Parameters, input_ids, token_type_ids, num_layers: int, num_heads: int):
    words = p["embeddings.word_embeddings.weight"]
    x = words[input_ids] + p["embeddings.token_type_embeddings.weight"][token_type_ids]
    x = x + p["embeddings.position_embeddings.weight"][: input_ids.shape[1]]
    x = norm(x, p, "embeddings.norm", 1e-12)
    for index in range(num_layers):
        block = f"encoder.layer.{index}"
        query, key, value = (linear(x, p, f"{block}.attention.{name}") for name in ("query", "key", "value"))
        mixed = linear(attention(query, key, value, num_heads, False), p, f"{block}.attention.output")
        x = norm(x + mixed, p, f"{block}.attention_norm", 1e-12)
        hidden = F.gelu(linear(x, p, f"{block}.intermediate"))
        x = norm(x + linear(hidden, p, f"{block}.output"), p, f"{block}.output_norm", 1e-12)
    x = norm(F.gelu(linear(x, p, "cls.dense")), p, "cls.norm", 1e-12)
    return x @ words.T + p["cls.bias"]


def rms_norm(x, p: Parameters, name: str):
    return F.rms_norm(x, x.shape[-1:], p[f"{name}.weight"], 1e-6)


def bias_by_position(p: Parameters, stack: str, length: int, is_two_sided: bool):
    """Return scores' bias, shape (heads, length, length), by the published rule, one pair at a time."""
    table = p[f"{stack}.relative_bias.table.weight"]
    buckets = [[bucket(key - query, is_two_sided) for key in range(length)] for query in range(length)]
    return table[torch.tensor(buckets)].permute(2, 0, 1)


def bucket(offset: int, is_two_sided: bool, num_buckets: int = 32, max_distance: int = 128) -> int:
    start, distance = 0, max(0, -offset)
    if is_two_sided:
        num_buckets //= 2
        start, distance = num_buckets if offset > 0 else 0, abs(offset)
    num_exact = num_buckets // 2
    if distance < num_exact:
        return start + distance
    growth = math.log(distance / num_exact) / math.log(max_distance / num_exact)
    return start + min(num_exact + int(growth * (num_buckets - num_exact)), num_buckets - 1)


def t5_attention(x, other, p: Parameters, name: str, bias, num_heads: int):
    def heads(x):
        return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)

    query, key, value = (
        heads(item @ p[f"{name}.{matrix}.weight"]) for item, matrix in ((x, "q"), (other, "k"), (other, "v"))
    )
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
    return mixed.transpose(1, 2).flatten(2) @ p[f"{name}.o.weight"]


def t5_stack(x, p: Parameters, stack: str, encoded, num_layers: int, num_heads: int):
    length = x.shape[1]
    bias = bias_by_position(p, stack, length, is_two_sided=encoded is None)
    if encoded is not None:
        bias = bias.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    for index in range(num_layers):
        block = f"{stack}.block.{index}"
        normed = rms_norm(x, p, f"{block}.attention_norm")
        x = x + t5_attention(normed, normed, p, f"{block}.attention", bias, num_heads)
        if encoded is not None:
            normed = rms_norm(x, p, f"{block}.cross_norm")
            x = x + t5_attention(normed, encoded, p, f"{block}.cross_attention", None, num_heads)
        normed = rms_norm(x, p, f"{block}.feed_forward_norm")
        gate = F.gelu(normed @ p[f"{block}.feed_forward.wi_0.weight"], approximate="tanh")
        hidden = gate * (normed @ p[f"{block}.feed_forward.wi_1.weight"])
        x = x + hidden @ p[f"{block}.feed_forward.wo.weight"]
    return rms_norm(x, p, f"{stack}.final_layer_norm")


def as_torch(arrays: Mapping[str, np.ndarray]) -> dict[str, "torch.Tensor"]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@pytest.mark.parametrize("batch", [1, 3])
def test_gpt2_computes_what_torch_computes(batch: int, run_model, assert_close) -> None:
    model = load_model("gpt2:tiny", batch=batch)
    parameters, inputs = random_parameters(model, 0), random_inputs(model, 1)
    expected = gpt2(as_torch(parameters), torch.from_numpy(inputs[0]), num_layers=4, num_heads=4)
    (found,) = run_model(model, inputs, parameters)
    assert_close(found, expected.numpy())


def test_gpt2_for_training_returns_the_mean_cross_entropy(run_model, assert_close) -> None:
    model = load_model("gpt2:tiny", shapes={"input_ids": (2, 16)}, training=True)
    parameters, inputs = random_parameters(model, 0), random_inputs(model, 1)
    logits = gpt2(as_torch(parameters), torch.from_numpy(inputs[0]), num_layers=4, num_heads=4)
    expected = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(inputs[1]).flatten())
    (found,) = run_model(model, inputs, parameters)
    assert_close(found, expected.numpy())


def test_bert_computes_what_torch_computes(run_model, assert_close) -> None:
    model = load_model("bert:tiny", batch=2)
    parameters, inputs = random_parameters(model, 0), random_inputs(model, 1)
    expected = bert(as_torch(parameters), *map(torch.from_numpy, inputs), num_layers=4, num_heads=4)
    (found,) = run_model(model, inputs, parameters)
    assert_close(found, expected.numpy())


def test_mt5_computes_what_torch_computes(run_model, assert_close) -> None:
    model = load_model("mt5:tiny", shapes={"input_ids": (2, 40), "decoder_input_ids": (2, 12)})
    parameters, inputs = random_parameters(model, 0), random_inputs(model, 1)
    p, (input_ids, decoder_input_ids) = as_torch(parameters), map(torch.from_numpy, inputs)
    words = p["shared.weight"]
    encoded = t5_stack(words[input_ids], p, "encoder", None, num_layers=2, num_heads=4)
    decoded = t5_stack(words[decoder_input_ids], p, "decoder", encoded, num_layers=2, num_heads=4)
    (found,) = run_model(model, inputs, parameters)
    assert_close(found, (decoded @ p["lm_head.weight"]).numpy())


@pytest.mark.slow
def test_models_of_published_size_compute_what_torch_computes(run_model, assert_close) -> None:
    for name, reference in (
        ("gpt2:small", lambda p, ids: gpt2(p, ids, num_layers=12, num_heads=12)),
        ("bert:base", lambda p, ids, types: bert(p, ids, types, num_layers=12, num_heads=12)),
    ):
        model = load_model(name)
        parameters, inputs = random_parameters(model, 0), random_inputs(model, 1)
        expected = reference(as_torch(parameters), *map(torch.from_numpy, inputs))
        (found,) = run_model(model, inputs, parameters)
        assert_close(found, expected.numpy())


def test_mt5_decodes_each_sequence_it_encodes() -> None:
    with pytest.raises(ValueError, match="batch 2 and decoder_input_ids 1"):
        load_model("mt5:tiny", shapes={"input_ids": (2, 8)})


@pytest.mark.parametrize("is_two_sided", [False, True])
def test_buckets_of_offsets_follow_the_published_rule(is_two_sided: bool) -> None:
    offsets = np.arange(-300, 301)
    found = relative_buckets(offsets, 32, 128, is_two_sided=is_two_sided)
    expected = np.array([bucket(int(offset), is_two_sided) for offset in offsets])
    assert found.tolist() == expected.tolist()
    assert found.min() == 0
    assert found.max() == 31


def test_perceptron_computes_what_numpy_computes(run_model, assert_close) -> None:
    model = load_model("mlp:tiny", batch=5)
    parameters, (x,) = random_parameters(model, 0), random_inputs(model, 1)
    (found,) = run_model(model, [x], parameters)
    for index in range(3):
        x = np.maximum(x @ parameters[f"layers.{index}.weight"] + parameters[f"layers.{index}.bias"], 0)
    assert_close(found, x @ parameters["head.weight"] + parameters["head.bias"])


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("gpt2:small", 124_439_808),
        ("gpt2:medium", 354_823_168),
        ("bert:base", 109_514_298),
        ("mt5:small", 300_176_768),
        ("mt5:base", 582_401_280),
    ],
)
def test_model_has_as_many_parameters_as_the_published_checkpoint(name: str, num_parameters: int) -> None:
    model = load_model(name)
    variables = model.module["main"].params[len(model.inputs) :]
    assert sum(int(np.prod([int(n) for n in v.ty.shape])) for v in variables) == num_parameters


def test_gpt2_by_itself_is_the_small_one_over_128_tokens() -> None:
    model = load_model("gpt2")
    assert model.name == "gpt2:small"
    assert model.inputs[0].shape == (1, 128)


def test_head_and_embedding_are_one_parameter() -> None:
    model = load_model("gpt2:tiny")
    assert model.tied == (("transformer.wte.weight", "lm_head.weight"),)
    assert "transformer.wte.weight" in model.parameter_names
    assert "lm_head.weight" not in model.parameter_names


def test_every_layer_of_gpt2_has_its_path() -> None:
    model = load_model("gpt2:tiny", training=True)
    for index in range(4):
        assert f"transformer.h.{index}.attn.c_attn" in model.module_paths
        assert f"transformer.h.{index}.mlp" in model.module_paths
    assert model.module_paths[-1] == "loss"

"""Language models of the zoo, against the same mathematics written in torch's own functions."""

from collections.abc import Mapping

import numpy as np
import pytest

from tuner.frontend import load_model, random_inputs, random_parameters

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


def test_perceptron_computes_what_numpy_computes(run_model, assert_close) -> None:
    model = load_model("mlp:tiny", batch=5)
    parameters, (x,) = random_parameters(model, 0), random_inputs(model, 1)
    (found,) = run_model(model, [x], parameters)
    for index in range(3):
        x = np.maximum(x @ parameters[f"layers.{index}.weight"] + parameters[f"layers.{index}.bias"], 0)
    assert_close(found, x @ parameters["head.weight"] + parameters["head.bias"])


def test_gpt2_small_has_the_published_number_of_parameters() -> None:
    model = load_model("gpt2")
    counts = [int(np.prod([int(n) for n in v.ty.shape])) for v in model.module["main"].params[1:]]
    assert sum(counts) == 124_439_808  # as the published checkpoint: 12 layers, width 768
    assert model.inputs[0].shape == (1, 128)
    assert model.name == "gpt2:small"


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

"""The user's own program as a reference: its inputs, its losses and gradients, and what names it."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from tuner.errors import TunerError  # noqa: E402 - after the skip
from tuner.frontend import load_model  # noqa: E402
from tuner.frontend.loading import for_training  # noqa: E402
from tuner.frontend.torch.program import import_module  # noqa: E402
from tuner.frontend.torch.reference.user_module import UserModule  # noqa: E402
from tuner.graph.torch_call import torch_calls_in  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Tied(nn.Module):
    """Tied, frozen and unused weights, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.frozen, self.unused = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(2, 2)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.words.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.tensor([2.0, 1.0, 0.5, 3.0]))

    def forward(self, ids):
        return self.head(self.frozen(self.words(ids)).tanh() * self.scale)


class Padded(nn.Module):
    """An encoder that torch would run by a kernel of its own, with zeros where the mask says padding.

    Of the decoder's mask torch would see by its values that it is causal.
    """

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2).requires_grad_(False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1)

    def forward(self, x, padding):
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        encoded = self.encoder(x, src_key_padding_mask=padding)
        return encoded, self.decoder(x, encoded, tgt_mask=mask)


def test_encoders_are_imported_and_compared_without_torchs_fast_path(run_model, assert_close) -> None:
    torch.manual_seed(0)
    module = Padded().eval()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    model = import_module(module, (x, padding), "padded")
    assert not list(torch_calls_in(model.module["main"]))
    inputs = {"x": x.numpy(), "padding": padding.numpy()}
    expected = model.reference.outputs(inputs)
    for found, true in zip(run_model(model, list(inputs.values()), model.parameters), expected, strict=True):
        assert_close(found, true)
    assert expected[0][1, 3:].any()
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.fixture(scope="module")
def tied():
    torch.manual_seed(0)
    module = Tied()
    return module, for_training(import_module(module, (torch.zeros(2, 3, dtype=torch.long),), "tied"))


def test_loss_and_gradients_are_the_modules_own(tied) -> None:
    module, model = tied
    inputs, outputs = model.reference.draw(model.inputs, seed=0)
    assert list(inputs) == ["ids", "labels"]
    assert inputs["ids"].max() > 1  # drawn as far as the table reaches, though the example holds zeros
    logits = module(torch.from_numpy(inputs["ids"]))
    expected = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(inputs["labels"]).flatten())
    expected.backward()
    loss, gradients = model.reference.gradients(model, inputs)
    assert loss == outputs[0] == expected.detach().numpy()
    np.testing.assert_array_equal(outputs[1], logits.detach().numpy())
    assert gradients.keys() == {"words.weight"}
    np.testing.assert_array_equal(gradients["words.weight"], module.words.weight.grad.numpy())
    assert model.untrained == {"frozen.weight", "frozen.bias", "scale"}
    exact = model.reference.exact_gradients(model, inputs)
    assert {name: gradient.dtype for name, gradient in exact.items()} == {"words.weight": np.float64}
    np.testing.assert_allclose(exact["words.weight"], gradients["words.weight"], rtol=1e-5, atol=1e-8)
    assert (exact["words.weight"] != gradients["words.weight"]).any()
    assert (module.words.weight.dtype, torch.get_default_dtype()) == (torch.float32, torch.float32)


def test_all_that_is_given_goes_where_the_module_was_moved() -> None:
    """The meta device stands for a GPU: it takes any tensor, and no other device's beside its own."""
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    program = torch.export.export(module, (torch.zeros(3, 2),)).run_decompositions({})
    user = UserModule(module=module, examples=(torch.zeros(3, 2),), program=program, mode="train")
    examples = user.examples_by_name
    module.to("meta")
    given = (*user.arguments(examples), *user.state(examples).values())
    assert len(given) == 4  # the input, and a mean, a variance and a number of batches that are written
    assert {each.device.type for each in given} == {"meta"}


def test_weights_and_programs_have_names_of_their_own(tied) -> None:
    module, model = tied
    name = model.reference.fingerprint(model)
    assert name == model.reference.fingerprint(model)
    other = replace(model, parameters={**model.parameters, "scale": model.parameters["scale"] * 2})
    assert other.reference.fingerprint(other) != name
    with torch.no_grad():
        module.words.weight[0, 0] += 1
    assert model.reference.fingerprint(model) != name


def test_examples_are_taken_where_drawn_inputs_give_no_numbers() -> None:
    class Log(nn.Module):
        def forward(self, x, i):
            return x.log()[i]

    example = torch.full((3,), 2.0), torch.tensor([0, 2])
    reference = import_module(Log(), example, "log").reference
    inputs, (found,) = reference.draw(import_module(Log(), example, "log").inputs, seed=0)
    np.testing.assert_array_equal(inputs["x"], [2.0, 2.0, 2.0])
    np.testing.assert_allclose(found, np.log([2.0, 2.0]), rtol=1e-6)


def test_a_module_without_numbers_is_refused() -> None:
    class Log(nn.Module):
        def forward(self, x):
            return x.log()

    model = import_module(Log(), (torch.full((3,), -1.0),), "log")
    with pytest.raises(TunerError, match=r"Log gives no numbers.*outputs hold NaN.*example inputs"):
        model.reference.draw(model.inputs, seed=0)


def test_an_exported_program_is_its_own_reference(tmp_path) -> None:
    torch.manual_seed(0)
    module = Tied()
    ids = torch.tensor([[1, 2, 8]])
    path = tmp_path / "tied.pt2"
    torch.export.save(torch.export.export(module.eval(), (ids,)), str(path))
    model = load_model(str(path), training=True)
    assert model.reference.mode == "export"
    inputs, outputs = model.reference.draw(model.inputs, seed=0)
    expected = module(torch.from_numpy(inputs["ids"]))
    np.testing.assert_allclose(outputs[1], expected.detach().numpy(), rtol=1e-5)
    F.cross_entropy(expected.flatten(0, 1), torch.from_numpy(inputs["labels"]).flatten()).backward()
    loss, gradients = model.reference.gradients(model, inputs)
    assert loss == outputs[0]
    np.testing.assert_allclose(gradients["words.weight"], module.words.weight.grad.numpy(), atol=1e-7)

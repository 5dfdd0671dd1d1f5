"""What a module does only while it trains is found and named, and the module stays as it was."""

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from tests.samples.programs.imported_models import Tripled  # noqa: E402 - after the skip
from tuner.errors import UnsupportedOperatorError  # noqa: E402
from tuner.frontend import load_model  # noqa: E402
from tuner.frontend.torch.training import find_own_backwards, observe_training  # noqa: E402
from tuner.stages.torch_stages import split_module  # noqa: E402

pytestmark = pytest.mark.torch

X = torch.randn(4, 6)


triple = Tripled.apply


class Own(nn.Module):
    """A linear layer and whatever is under test behind it."""

    def __init__(self, behind, layer=None) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.layer = layer
        self.behind = behind

    def forward(self, x):
        x = self.first(x)
        return self.behind(self, x if self.layer is None else self.layer(x))


DIFFERENCES = {
    "a layer of dropout": (Own(lambda s, x: x, nn.Dropout(0.1)), r"dropout \(p=0\.1\) in layer"),
    "a call of dropout": (
        Own(lambda s, x: F.dropout(x, 0.2, s.training)),
        r"dropout \(p=0\.2\) in the module",
    ),
    "dropout of features": (Own(lambda s, x: x, nn.AlphaDropout(0.3)), r"alpha_dropout \(p=0\.3\) in layer"),
    "statistics of the batch": (Own(lambda s, x: x, nn.BatchNorm1d(6)), "batch_norm in layer"),
    "attention's dropout": (
        Own(lambda s, x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5 if s.training else 0.0)),
        r"scaled_dot_product_attention \(p=0\.5\)",
    ),
    "a layer of attention": (
        Own(lambda s, x: s.head(x, x, x)[0], None),
        r"multi_head_attention_forward \(p=0\.4\) in head",
    ),
    "its own branch": (Own(lambda s, x: x * 2 if s.training else x), "Own, whose code asks whether it is"),
    "a mode that fails": (
        Own(
            lambda s, x: x,
            nn.Sequential(nn.Unflatten(1, (6, 1)), nn.InstanceNorm1d(6, track_running_stats=True)),
        ),
        "a mode for training that fails|instance_norm",
    ),
}
DIFFERENCES["a layer of attention"][0].head = nn.MultiheadAttention(6, 2, dropout=0.4)

SAME = {
    "no dropout": Own(lambda s, x: x, nn.Dropout(0.0)),
    "powers, which have no signature": Own(lambda s, x: x**2 + 2**x, nn.Identity()),
    "norms of each example": Own(lambda s, x: x, nn.LayerNorm(6)),
    "statistics of the batch in both modes": Own(
        lambda s, x: x, nn.BatchNorm1d(6, track_running_stats=False)
    ),
}


@pytest.mark.parametrize("name", sorted(DIFFERENCES))
def test_what_differs_while_training_is_named(name: str) -> None:
    module, message = DIFFERENCES[name]
    (difference,) = observe_training(module, (X,)).differences
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(difference)


@pytest.mark.parametrize("name", sorted(SAME))
def test_what_does_not_differ_is_not_named(name: str) -> None:
    behaviour = observe_training(SAME[name], (X,))
    assert behaviour.differences == ()
    assert behaviour.own_backwards == ()


def test_many_places_are_counted() -> None:
    module = nn.Sequential(*(nn.Dropout(0.5) for _ in range(6)))
    (difference,) = observe_training(module, (X,)).differences
    assert difference == "dropout (p=0.5) in 0, 1, 2, 3 and 2 more"


def test_the_module_stays_as_it_was() -> None:
    module = Own(lambda s, x: x, nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5)))
    module.train()
    module.layer[0].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    observe_training(module, (X,))
    assert torch.equal(torch.get_rng_state(), state)
    assert [each.training for each in module.layer] == [False, True]
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert all(not each._forward_hooks and not each._forward_pre_hooks for each in module.modules())
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize(
    "behind", [lambda s, x: Tripled.apply(x), lambda s, x: triple(x), lambda s, x: triple(x).relu() + x]
)
def test_a_backward_of_its_own_is_named(behind) -> None:
    assert find_own_backwards(Own(behind), (X,)) == ("Tripled in the module itself",)
    layer = Own(behind)
    assert find_own_backwards(Own(lambda s, x: x, layer), (X,)) == ("Tripled in layer",)


def test_a_backward_hook_is_a_backward_of_its_own() -> None:
    module = Own(lambda s, x: x, nn.Linear(6, 6))
    module.layer.register_full_backward_hook(lambda layer, before, after: (before[0] * 2,))
    (found,) = find_own_backwards(module, (X,))
    assert found.startswith("BackwardHookFunction in ")


def test_checkpoints_are_no_backward_of_their_own() -> None:
    from torch.utils.checkpoint import checkpoint  # noqa: PLC0415 - used here alone

    for reentrant in (True, False):
        module = Own(lambda s, x, r=reentrant: checkpoint(torch.tanh, x, use_reentrant=r))
        assert find_own_backwards(module, (X,)) == ()


def test_stages_of_a_module_with_its_own_backward_are_refused() -> None:
    module = Own(lambda s, x: x, Own(lambda s, x: triple(x)))
    with pytest.raises(Exception, match=r"backward of its own \(Tripled in layer\)"):
        split_module(module, (X,), ["first"])


FILE = """
import torch
from torch import nn

class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, g): return g * 3

class Net(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.first, self.layer = nn.Linear(6, 5), layer
    def forward(self, x): return self.layer(self.first(x))

class Own(nn.Module):
    def forward(self, x): return Tripled.apply(x)

class Trained(nn.Module):
    def forward(self, x): return Tripled.apply(x) if self.training else x * 2

def hooked():
    layer = nn.Tanh()
    layer.register_full_backward_hook(lambda layer, before, after: (before[0] * 2,))
    return Net(layer), (torch.randn(4, 6),)
class Losses(nn.Module):
    def __init__(self, *names):
        super().__init__()
        self.layer, self.names = nn.Linear(6, 5), names
    def forward(self, x):
        y = self.layer(x)
        made = {"loss": y.square().mean(), "logits": y, "count": y.argmax()}
        made["penalty"] = self.layer.weight.abs().sum()
        made = {name: made[name] for name in self.names}
        return tuple(made.values()) if "count" in made else made

def several(): return Losses("loss", "logits", "penalty"), (torch.randn(4, 6),)
def one(): return Losses("logits", "loss", "count"), (torch.randn(4, 6),)
def none(): return Losses("logits", "count"), (torch.randn(4, 6),)
def own(): return Net(Own()), (torch.randn(4, 6),)
def only_trained(): return Net(Trained()), (torch.randn(4, 6),)
def drops(): return Net(nn.Dropout(0.25)), (torch.randn(4, 6),)
def batch(): return Net(nn.BatchNorm1d(5)), (torch.randn(4, 6),)
def plain(): return Net(nn.Tanh()), (torch.randn(4, 6),)
"""


def test_a_model_is_loaded_for_training_with_a_note_or_refused(tmp_path) -> None:
    path = tmp_path / "net.py"
    path.write_text(FILE)
    with pytest.raises(UnsupportedOperatorError, match=r"BackwardHookFunction in .*layer.*--infer"):
        load_model(f"{path}:hooked", training=True)
    assert load_model(f"{path}:hooked").notes == ()
    own = load_model(f"{path}:own", training=True)
    assert (own.notes, own.reference.mode) == ((), "train")
    only_trained = load_model(f"{path}:only_trained", training=True)
    assert "also has a backward of its own (Tripled in layer)" in only_trained.notes[0]
    assert only_trained.reference.mode == "train"
    drops = load_model(f"{path}:drops", training=True)
    (note,) = drops.notes
    assert "dropout (p=0.25) in layer" in note
    assert "its masks are inputs" in note
    assert drops.reference.mode == "train"
    batch = load_model(f"{path}:batch", training=True)
    (note,) = batch.notes
    assert "batch_norm in layer: each micro-batch" in note
    assert "torch.optim.swa_utils.update_bn" in note
    assert batch.reference.mode == "train"
    plain = load_model(f"{path}:plain", training=True)
    assert (plain.notes, plain.reference.mode) == ((), "train")
    again = load_model(f"{path}:plain", training=True)
    assert all((plain.parameters[name] == again.parameters[name]).all() for name in plain.parameter_names)


def test_several_losses_in_a_dict_or_a_tuple_are_trained_on_as_their_sum(tmp_path, run_model) -> None:
    path = tmp_path / "net.py"
    path.write_text(FILE)
    for name, what in (("several", "the sum of its 2 scalars"), ("one", "its only scalar")):
        model = load_model(f"{path}:{name}", training=True)
        assert f"the model returns 3 tensors: it is trained on {what}" in model.notes
        assert [spec.name for spec in model.inputs] == ["x"]
        inputs, (expected,) = model.reference.draw(model.inputs, 0)
        assert expected == model.reference.gradients(model, inputs)[0]
        (found,) = run_model(model, list(inputs.values()), model.parameters)
        assert found == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="neither a loss nor one tensor of logits"):
        load_model(f"{path}:none", training=True)

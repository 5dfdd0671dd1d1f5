"""The table that a torch job writes loads, and says of each layer what is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tessel.profiles import Profile, load_profile  # noqa: E402 (torch is asked for first)
from tessel.profiles.torch_hooks import coverage, measure_layers, write_table  # noqa: E402

pytestmark = pytest.mark.torch

SAMPLES, LENGTH, WIDTH, VOCABULARY = 2, 8, 16, 50


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.block = torch.nn.Linear(WIDTH, WIDTH)
        self.act = torch.nn.ReLU()
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.act(self.block(self.embedding(tokens))))
        return logits


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(VOCABULARY, (SAMPLES, LENGTH))


@pytest.fixture(scope="module")
def profile(net: Net, tokens: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    layers = {"embedding": net.embedding, "block": net.block, "act": net.act, "head": net.head}
    rows = measure_layers(layers, lambda: net(tokens), repeats=2, micro_batch=SAMPLES)
    path = tmp_path_factory.mktemp("job") / "profile.csv"
    write_table(rows, path, model="net", device="a CPU")
    assert [each.name for each in path.parent.iterdir()] == ["profile.csv"]
    return load_profile(path)


def test_table_of_a_job_loads(profile: Profile) -> None:
    assert (profile.name, profile.device) == ("net", "a CPU")
    assert [layer.name for layer in profile.layers] == ["embedding", "block", "act", "head"]
    assert profile.micro_batches == (SAMPLES,)
    assert profile.is_training
    for cost in profile.costs(micro_batch=SAMPLES):
        assert cost.is_splittable
        assert cost.forward_us > 0


def test_bytes_are_those_of_the_tensors(profile: Profile) -> None:
    embedding, block, act, head = profile.costs(micro_batch=SAMPLES)
    hidden = SAMPLES * LENGTH * WIDTH * 4
    assert embedding.weight_bytes == head.weight_bytes == VOCABULARY * WIDTH * 4
    assert block.weight_bytes == (WIDTH * WIDTH + WIDTH) * 4
    assert act.weight_bytes == 0
    assert embedding.saved_bytes == SAMPLES * LENGTH * 8, "the tokens, 64-bit; the weight is not counted"
    assert block.saved_bytes == hidden, "its input"
    assert act.saved_bytes == hidden, "its output"
    assert (embedding.boundary_bytes, block.boundary_bytes) == (hidden, hidden)
    assert head.boundary_bytes == SAMPLES * LENGTH * VOCABULARY * 4


def test_halves_are_where_gradients_are(profile: Profile) -> None:
    embedding, _, act, head = profile.costs(micro_batch=SAMPLES)
    assert embedding.backward_input_us == 0, "tokens need no gradient"
    assert act.backward_weight_us == 0, "there are no weights"
    assert act.backward_input_us == act.backward_us
    assert (head.backward_input_us or 0) > 0


def test_shared_weights_tie_their_layers(profile: Profile) -> None:
    ties = {layer.name: layer.tie for layer in profile.layers}
    assert ties == {"embedding": "embedding.weight", "block": "", "act": "", "head": "embedding.weight"}


def test_gradients_of_the_job_are_left_alone(net: Net, tokens: torch.Tensor) -> None:
    measure_layers({"block": net.block}, lambda: net(tokens), repeats=1)
    assert all(parameter.grad is None for parameter in net.parameters())
    assert not net.block._forward_pre_hooks


def test_coverage_is_a_share_of_a_step(net: Net, tokens: torch.Tensor) -> None:
    rows = measure_layers({"block": net.block}, lambda: net(tokens), repeats=1)
    assert coverage(rows, lambda: net(tokens).sum(), repeats=1) > 0


def test_layers_that_cannot_be_measured_are_named(net: Net, tokens: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="layer 'unused' is not run by the step"):
        measure_layers({"block": net.block, "unused": net.unused}, lambda: net(tokens))
    frozen = torch.nn.Sequential(torch.nn.Linear(2, 2)).requires_grad_(False)
    with pytest.raises(ValueError, match="result of the layer 'first' has no gradient"):
        measure_layers({"first": frozen[0]}, lambda: frozen(torch.ones(1, 2)))


def test_several_sizes_stand_in_one_table(net: Net, tokens: torch.Tensor, tmp_path: Path) -> None:
    layers = {"embedding": net.embedding, "block": net.block}
    rows = []
    for size in (1, 2):
        rows += measure_layers(layers, lambda size=size: net(tokens[:size]), repeats=7, micro_batch=size)
    write_table(rows, tmp_path / "profile.csv")
    assert load_profile(tmp_path / "profile.csv").micro_batches == (1, 2)

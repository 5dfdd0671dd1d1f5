"""The table that a torch job writes loads, and says of each layer what is in it."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tessel.profiles import Profile, load_profile  # noqa: E402 (torch is asked for first)
from tessel.profiles.torch_hooks import Row, coverage, measure_layers, write_table  # noqa: E402

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


class Clock:
    """A clock that layers advance, on a machine whose load changes from round to round."""

    def __init__(self, load: Iterator[float]) -> None:
        self.now = 0.0
        self._load = load
        self.factor = 1.0

    def perf_counter(self) -> float:
        return self.now

    def next_round(self) -> None:
        self.factor = next(self._load)


class Costed(torch.nn.Module):
    """A layer whose forward, input half and weight half take so many milliseconds of a clock."""

    def __init__(
        self, clock: Clock, costs: tuple[float, float, float], *, begins_round: bool = False
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.clock, self.costs, self.begins_round = clock, costs, begins_round
        self.forwards = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        if self.begins_round and self.forwards % 2:  # a round has two forwards
            self.clock.next_round()
        self.advance(self.costs[0])
        x, weight = (
            _Costed.apply(each, self, cost)
            for each, cost in zip((x, self.weight), self.costs[1:], strict=True)
        )
        found: torch.Tensor = x * weight
        return found

    def advance(self, milliseconds: float) -> None:
        self.clock.now += milliseconds / 1e3 * self.clock.factor


class _Costed(torch.autograd.Function):
    """Hands a tensor on, whose gradient takes time, if it is wanted."""

    @staticmethod
    def forward(ctx, tensor, layer, cost):  # type: ignore[no-untyped-def]
        ctx.layer, ctx.cost = layer, cost
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        ctx.layer.advance(ctx.cost)
        return gradient, None, None


def costed_rows(
    monkeypatch: pytest.MonkeyPatch, *costs: tuple[float, float, float], load: Iterator[float]
) -> list[Row]:
    clock = Clock(load)
    monkeypatch.setattr("tessel.profiles.torch_hooks.time", clock)
    layers = [Costed(clock, each, begins_round=not place) for place, each in enumerate(costs)]
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), *layers)
    named = {f"block{place}": layer for place, layer in enumerate(layers)}
    return measure_layers(named, lambda: model(torch.ones(2, 4)), repeats=6)


def busy() -> Iterator[float]:
    """Rounds of which every second one is slower than the one before, by far."""
    return itertools.chain.from_iterable((1.0, factor) for factor in (3.0, 5.0, 7.0, 9.0, 11.0, 13.0))


def test_halves_of_a_busy_machine_are_those_of_equal_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are alike, so are their figures: no load falls on one of them alone."""
    costs = (2.0, 3.0, 4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = costed_rows(monkeypatch, costs, costs, costs, load=busy())
    halves = [(row["backward_ms"], row["backward_input_ms"], row["backward_weight_ms"]) for row in rows]
    assert len(set(halves)) == 1
    joint, first, second = map(float, halves[0])
    assert first + second == pytest.approx(joint, rel=1e-3)
    assert second / first == pytest.approx(4 / 3, rel=1e-3)
    assert rows[0]["spread"] == rows[1]["spread"] > 0.1


def test_layers_that_are_alike_and_differ_are_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match="'block0' and 'block1' are alike, and a backward took 7 and 14 ms"):
        costed_rows(monkeypatch, (2.0, 3.0, 4.0), (2.0, 6.0, 8.0), load=itertools.repeat(1.0))
    with pytest.warns(UserWarning, match="'block0' and 'block1' are alike, and a forward took 2 and 9 ms"):
        costed_rows(monkeypatch, (2.0, 3.0, 4.0), (9.0, 3.0, 4.0), load=itertools.repeat(1.0))

"""Gradients of stages are those of the uncut module, whichever way each micro-batch's backward is run."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from pipeline_programs import Step  # noqa: E402 - as below
from torch import nn  # noqa: E402 - only where torch is installed

from tuner.programs.autograd_stage import AutogradStage  # noqa: E402 - as above
from tuner.stages.torch_stages import TorchPipeline, split_module  # noqa: E402 - as above

pytestmark = pytest.mark.torch

WORDS, WIDTH = 11, 6


class TiedPair(nn.Module):
    """Two embeddings and the head are one weight; the middle reads words of its own, apart from the rest."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.third = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory = torch.tanh(self.first(self.embed(source)))
        apart = self.second(self.embed(target))
        self.unused(memory)
        return self.head(self.third(memory + torch.sin(apart) + apart))


class Decoder(nn.Module):
    """Later layers add what the first stage made to words of their own; one weight is everywhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.Linear(WIDTH, WIDTH)
        self.decoder = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory = torch.tanh(self.encoder(self.embed(source)))
        x = self.embed(target)
        for layer in self.decoder:
            x = torch.tanh(layer(x)) + memory * x
        return self.head(x)


CASES = {"pair": (TiedPair, ["first", "second"]), "decoder": (Decoder, ["encoder", "decoder.1"])}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[type[nn.Module], TorchPipeline]:
    make, cuts = CASES[request.param]
    return make, split_module(make().eval(), _inputs(0), cuts)


def _inputs(micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(micro_batch)
    return tuple(torch.from_numpy(rng.integers(0, WORDS, (2, 3))) for _ in range(2))


def _loss(logits: torch.Tensor, micro_batch: int) -> torch.Tensor:
    return (logits.square() * (1 + micro_batch)).mean()


def _programs(pipeline: TorchPipeline, *, recomputed: Collection[int] = ()) -> list[AutogradStage]:
    names = {info.name for stage in pipeline.stages for info in stage.received}
    return [
        AutogradStage(
            stage,
            inputs=lambda m: dict(zip(pipeline.input_names, _inputs(m), strict=True)),
            loss=(lambda m, known: _loss(known[pipeline.output_names[0]], m))
            if number == len(pipeline.stages) - 1
            else None,
            differentiable=frozenset(names),
            recomputes=number in recomputed,
        )
        for number, stage in enumerate(pipeline.stages)
    ]


def _run(programs: Sequence[AutogradStage], micro_batches: Sequence[int], halves: np.ndarray) -> None:
    """Run all forwards, then all backwards, then the weight halves in another order."""
    for program in programs:
        program.start_step(len(micro_batches))
    for m in micro_batches:
        sent: dict[str, torch.Tensor] = {}
        for program in programs:
            sent = program.run(Step("F", m), sent)
    for m in micro_batches:
        sent = {}
        for number in reversed(range(len(programs))):
            sent = programs[number].run(Step("I" if halves[number, m] else "B", m), sent)
    for m in reversed(micro_batches):
        for number, program in enumerate(programs):
            if halves[number, m]:
                program.run(Step("W", m), {})


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(3)), st.integers(0, 2**9 - 1), st.sets(st.integers(0, 2)))
def test_gradients_are_the_uncut_modules(
    case: tuple[type[nn.Module], TorchPipeline], micro_batches: Sequence[int], bits: int, recomputed: set[int]
) -> None:
    make, pipeline = case
    programs = _programs(pipeline, recomputed=recomputed)
    _run(programs, micro_batches, np.array([bits >> i & 1 for i in range(9)], dtype=bool).reshape(3, 3))
    module = make().eval()
    losses = {m: _loss(module(*_inputs(m)), m) for m in range(3)}
    (sum(losses.values()) / 3).backward()
    assert programs[-1].losses() == pytest.approx({m: loss.item() for m, loss in losses.items()})
    expected = {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}
    found: dict[str, torch.Tensor] = {}
    for program in programs:
        for name, gradient in program.gradients().items():
            name = "embed.weight" if name == "head.weight" else name
            found[name] = found[name] + gradient if name in found else gradient
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


def test_a_step_forgets_the_one_before(
    case: tuple[type[nn.Module], TorchPipeline],
) -> None:
    _, pipeline = case
    programs = _programs(pipeline)
    halves = np.zeros((3, 3), dtype=bool)
    _run(programs, [0, 1, 2], halves)
    once = [program.gradients() for program in programs]
    _run(programs, [0, 1, 2], halves)
    for before, program in zip(once, programs, strict=True):
        for name, gradient in program.gradients().items():
            torch.testing.assert_close(gradient, before[name])


def test_a_recomputing_stage_keeps_no_graph_between_forward_and_backward(
    case: tuple[type[nn.Module], TorchPipeline],
) -> None:
    _, pipeline = case
    (stage, *_) = pipeline.stages
    made: list[tuple[bool, weakref.ref[torch.Tensor]]] = []

    def note(module: nn.Module, arguments: object, results: tuple[torch.Tensor, ...]) -> None:
        made.extend((result.requires_grad, weakref.ref(result)) for result in results)

    hook = stage.module.register_forward_hook(note)
    try:
        program = _programs(pipeline, recomputed={0})[0]
        program.start_step(1)
        program.run(Step("F", 0), {})
        assert not any(has_graph or result() is not None for has_graph, result in made)
        num_results = len(made)
        gradients = {info.name: torch.ones(info.shape) for info in program.received_gradients}
        program.run(Step("B", 0), gradients)
    finally:
        hook.remove()
    assert len(made) == 2 * num_results, "the forward runs once more, in the backward"
    assert any(has_graph for has_graph, _ in made[num_results:])


def test_split_halves_leave_nothing_in_the_weights(
    case: tuple[type[nn.Module], TorchPipeline],
) -> None:
    _, pipeline = case
    programs = _programs(pipeline)
    _run(programs, [0, 1, 2], np.ones((3, 3), dtype=bool))
    assert all(weight.grad is None for stage in pipeline.stages for weight in stage.module.parameters())

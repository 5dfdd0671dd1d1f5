"""Small models of one's own with plans made by hand: no search, no measurement, every figure given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import nn

from tuner.backends.registry import available_backends
from tuner.frontend import load_model
from tuner.graph import DataflowGraph
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.batch_norm_folding import fold_batch_norms
from tuner.lowering.outline import extract_function
from tuner.lowering.workload_of import workload_of
from tuner.partition.find_partition import find_candidates
from tuner.plan import Figure, ModelPlan, PartitionPlan, ShardsPlan, StagePlan
from tuner.shards.interface import ShardedStage
from tuner.shards.layouts import Split
from tuner.shards.stage import shard_ends, shard_stages
from tuner.stages import (
    Stage,
    StageFunction,
    build_stages,
    cut_after,
    cut_between,
    layers_of,
    tied_groups,
)
from tuner.stages.placed_stages import LayerCosts, PlacedStages, choose_placed_cuts, layer_reads
from tuner.targets.resolution import resolve_target

WORDS, WIDTH = 12, 8
GIVEN = Figure(latency_us=1.0, source="given")


class EncoderDecoder(nn.Module):
    """Embeddings and head are one tensor; what the encoder made is read by every decoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.Linear(WIDTH, WIDTH)
        self.decoder = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory = torch.tanh(self.encoder(self.embed(source)))
        x = self.embed(target)
        for layer in self.decoder:
            x = torch.tanh(layer(x)) + memory
        return self.head(x)


def encoder_decoder() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    words = torch.arange(6).reshape(2, 3) * 2 + 1
    return EncoderDecoder(), (words, words.flip(0))


class Echo(nn.Module):
    """Returns what it was given and what its first layer made as well; the second layer reads that too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.first(x)
        return {"out": self.second(torch.tanh(hidden)), "hidden": hidden, "given": x}


def echo() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return Echo(), (torch.randn(4, WIDTH),)


class Captions(nn.Module):
    """Words, of which a mark stands for each of a picture's two patches; others are refused."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.project = nn.Linear(3, WIDTH)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
        marks = words == WORDS - 1
        if not torch.compiler.is_compiling() and int(marks.sum()) != 2 * len(words):
            raise ValueError(f"{int(marks.sum())} marks and {2 * len(words)} patches do not match")
        x = self.embed(words) * ~marks[..., None] + self.project(patches).mean(1, True) * marks[..., None]
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def captions() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return Captions(), (torch.tensor([[11, 1, 11, 4], [3, 11, 11, 7]]), torch.randn(2, 2, 3))


class LanguageModel(nn.Module):
    """Embedding and head are one tensor, of a number of words that neither 2 nor 4 divides."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS + 1, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS + 1, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def language_model() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return LanguageModel(), (torch.arange(6).reshape(2, 3) * 2 + 2,)


class Halves(nn.Module):
    """What crosses its cuts are views, and a mask of truth values, which has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(4, 4), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.first(x).chunk(2, dim=-1)
        kept = left > 0
        both = torch.cat([self.second(left), right], dim=-1)
        return (self.third(both) * kept[..., :3]).square().mean()


def halves() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return Halves(), (torch.zeros(3, 8),)


class Cache:
    """Something that no export knows."""


@dataclass
class Answer:
    """What a model of a library returns: losses, logits, and more."""

    loss: torch.Tensor
    penalty: torch.Tensor
    logits: torch.Tensor
    hidden: torch.Tensor | None
    cache: Cache


class Answering(nn.Module):
    """Has arguments that are left out, and gives a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Embedding(WORDS, WIDTH), nn.Linear(8, 8), nn.Linear(8, WORDS)

    def forward(
        self,
        words: torch.Tensor,
        mask: torch.Tensor | None = None,
        scale: float = 2.0,
        labels: torch.Tensor | None = None,
    ) -> Answer:
        x = self.second(self.first(words)).tanh() * scale
        logits = self.third(x if mask is None else x * mask)
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), words.flatten() if labels is None else labels
        )
        return Answer(loss, logits.square().mean(), logits, None, Cache())


def answering() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return Answering(), {"labels": torch.arange(6) + 6, "words": torch.arange(6).view(2, 3)}


class Calls(nn.Module):
    """Operators that stay calls of torch, one with a weight beside its input, in every stage."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.scales = nn.ParameterList(nn.Parameter(torch.rand(6) + 1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, scale in zip(self.layers, self.scales, strict=True):
            y = layer(x)
            values, places = torch.cummax(y, -1)
            x = x + torch.hypot(values, scale) + places.float() + torch.histc(y.flatten(), 6)
        return x


def calls() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return Calls(), (torch.randn(4, 6),)


class TwoTowers(nn.Module):
    """Two branches of their own that meet in a feed-forward layer, which divides over devices."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.words = nn.Embedding(WORDS, WIDTH)
        self.right = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.joint = nn.Sequential(nn.Linear(2 * WIDTH, 12), nn.GELU(), nn.Linear(12, WIDTH))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, picture: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        left = picture
        for layer in self.left:
            left = torch.tanh(layer(left))
        right = self.words(text)
        for layer in self.right:
            right = torch.tanh(layer(right))
        return self.head(self.joint(torch.cat([left, right], dim=-1)) + left)


def two_towers() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return TwoTowers(), (torch.zeros(4, WIDTH), torch.arange(4) * 3 + 2)


class UnevenTowers(TwoTowers):
    """The same with a layer that ends the one branch and begins the other."""

    def __init__(self) -> None:
        super().__init__()
        self.left_out = nn.Linear(WIDTH, WIDTH)

    def forward(self, picture: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        left = picture
        for layer in self.left:
            left = torch.tanh(layer(left))
        left = self.left_out(left)
        right = self.words(text)
        for layer in self.right:
            right = torch.tanh(layer(right))
        return self.head(self.joint(torch.cat([left, right], dim=-1)))


def uneven_towers() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return UnevenTowers(), (torch.zeros(4, WIDTH), torch.arange(4) * 3 + 2)


class Dropping(nn.Module):
    """Trains with dropout, by a layer and by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(torch.tanh(self.first(x)))
        x = nn.functional.dropout(torch.tanh(self.second(x)), 0.25, self.training)
        return self.third(x).square().mean()


def dropping() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return Dropping(), (torch.zeros(3, 8),)


class Thumbnails(nn.Module):
    """Convolutions with normalisations, which fold into their weights where nothing trains."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.second = nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False)
        self.third = nn.Conv2d(32, 32, 1, bias=False)
        self.fourth = nn.Conv2d(32, 48, 3, stride=2, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in (16, 32, 32, 48))
        self.head = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip((self.first, self.second, self.third, self.fourth), self.norms, strict=True):
            x = torch.relu(norm(layer(x)))
        return self.head(x.mean((2, 3)))


def thumbnails() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return Thumbnails(), (torch.zeros(2, 3, 16, 16),)


ANSWERING = "planned_models:answering"
CALLS = "planned_models:calls"
DROPPING = "planned_models:dropping"
ENCODER_DECODER = "planned_models:encoder_decoder"
CAPTIONS = "planned_models:captions"
ECHO = "planned_models:echo"
HALVES = "planned_models:halves"
LANGUAGE_MODEL = "planned_models:language_model"
THUMBNAILS = "planned_models:thumbnails"
TWO_TOWERS = "planned_models:two_towers"
UNEVEN_TOWERS = "planned_models:uneven_towers"


def plan_on_tvm(
    model_name: str, cuts: Sequence[str], *, training: bool = True, binds_weights: bool = True
) -> ModelPlan:
    """Return a plan that runs everything on TVM's own code, in few parts, and torch calls on torch.

    Args:
        model_name: as `load_model` takes it.
        cuts: names of layers after which a stage ends.
        training: whether it has backwards.
        binds_weights: whether weights are bound where nothing trains; plans of earlier versions had none.
    """
    model = load_model(model_name, training=training)
    is_bound = binds_weights and not training
    stages = build_stages(model, cut_after(model, cuts), constant_weights=is_bound)
    return ModelPlan(
        model=model_name,
        model_fingerprint=workload_of(model.module["main"], "model", module=model.module).fingerprint,
        training=training,
        target="cpu",
        device_model="any",
        num_threads=1,
        partition=_parts_on_tvm(stages),
        end_to_end={"mix": GIVEN},
        sum_of_parts=GIVEN,
        launch_penalty_us=1.0,
        max_relative_error=None,
        max_gradient_error=None,
        stages=tuple(stage.plan(dict.fromkeys(stage.functions(), GIVEN)) for stage in stages),
        tied=tied_groups(model, stages),
        hop_latency_us=(1.0,) * (len(stages) - 1),
        hop_source="given",
        new_measurements=0,
        reused_measurements=0,
        binds_weights=is_bound,
    )


def m_shape_on_tvm(model_name: str, num_devices: int, *, training: bool = True) -> ModelPlan:
    """Return the same, with the first and the last layer vocabulary-parallel, and the others cut evenly."""
    model = load_model(model_name, training=training)
    layers = [layer.name for layer in layers_of(model)]
    inner = layers[1:-1]
    last_of_each = [inner[len(inner) * (number + 1) // num_devices - 1] for number in range(num_devices)]
    plan = plan_on_tvm(model_name, [layers[0], *last_of_each], training=training)
    cuts = cut_after(model, [layers[0], *last_of_each])
    stages = build_stages(model, cuts, constant_weights=not training)
    divided = shard_ends(stages)
    segments = [
        part
        for stage in divided.values()
        for function in stage.functions().values()
        for shards in function.segments
        for part in shards
    ]
    known = {part.workload_fingerprint: part for part in (*plan.partition, *_functions_on_tvm(segments))}
    return msgspec.structs.replace(
        plan,
        partition=tuple(known.values()),
        stages=tuple(
            stage if stage.name not in divided else _with_shards(stage, divided[stage.name], num_devices)
            for stage in plan.stages
        ),
    )


def placed_on_tvm(
    model_name: str,
    placed: PlacedStages,
    *,
    fixed: Mapping[int, int] | None = None,
    training: bool = True,
) -> ModelPlan:
    """Return the same for any placement, cut by layers that all cost alike.

    Args:
        model_name: as `load_model` takes it.
        placed: where stages run, and which receives from which.
        fixed: divided stages that hold one layer, and which.
        training: whether it has backwards.
    """
    model = load_model(model_name, training=training)
    layers = layers_of(model, at_branches=not placed.is_chain)
    costs = LayerCosts(
        names=tuple(layer.name for layer in layers),
        costs_us=(1.0,) * len(layers),
        memory_bytes=(1,) * len(layers),
        reads=layer_reads(model, layers),
    )
    positions = cut_between(layers, choose_placed_cuts(placed, costs, fixed=fixed))
    stages = build_stages(model, positions, placed.branches, constant_weights=not training)
    divided = shard_stages(stages, {number: len(placed.devices[number]) for number in placed.divided})
    functions = [
        function for stage in stages if stage.name not in divided for function in stage.functions().values()
    ]
    functions += [
        part
        for stage in divided.values()
        for function in stage.functions().values()
        for shards in function.segments
        for part in shards
    ]
    plans = [stage.plan(dict.fromkeys(stage.functions(), GIVEN)) for stage in stages]
    return msgspec.structs.replace(
        plan_on_tvm(model_name, [], training=training),
        partition=_functions_on_tvm(functions),
        stages=tuple(
            _with_shards(plan, divided[plan.name], divided[plan.name].forward.num_shards)
            if plan.name in divided
            else plan
            for plan in plans
        ),
        tied=tied_groups(model, stages),
        hop_latency_us=(1.0,) * (len(stages) - 1),
        stage_devices=placed.devices,
        stages_before=placed.branches or (),
        cut_positions=positions,
    )


def _with_shards(stage: StagePlan, divided: ShardedStage, num_devices: int) -> StagePlan:
    axes = {
        name: layout.axis for name in stage.parameters if isinstance(layout := divided.layouts[name], Split)
    }
    shards = ShardsPlan(num_shards=num_devices, axes=axes, collective_us={})
    return msgspec.structs.replace(stage, shards=shards)


def _parts_on_tvm(stages: Sequence[Stage]) -> tuple[PartitionPlan, ...]:
    return _functions_on_tvm([function for stage in stages for function in stage.functions().values()])


def _functions_on_tvm(functions: Sequence[StageFunction]) -> tuple[PartitionPlan, ...]:
    target = resolve_target("cpu", num_threads=1)
    specs = gather_specs(available_backends(target), target)
    parts: dict[str, PartitionPlan] = {}
    for function in functions:
        graph = DataflowGraph.from_function(fold_batch_norms(function.module))
        for candidate in find_candidates(graph, specs).candidates:
            if candidate.backend == "tvm" or candidate.sub_graph.label == "torch call":
                part = extract_function(graph, candidate.sub_graph, candidate.backend)
                name = workload_of(part).fingerprint
                parts[name] = PartitionPlan(
                    operators=("any",),
                    backend=candidate.backend,
                    figure=GIVEN,
                    occurrences=1,
                    workload_fingerprint=name,
                )
    return tuple(parts.values())

"""Towers: parameters and operations of transformers' modules, frozen rows, and pictures that are divided."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tessel.architectures.architecture import Architecture, Tower
from tessel.architectures.config import Config
from tessel.architectures.families import architecture_of, load_architecture
from tessel.architectures.gpu_sheets import find_sheet
from tessel.architectures.kernels import AttentionCore, Kernel, Product
from tessel.architectures.layer_costs import profile_of_architecture
from tessel.architectures.roofline import Roofline
from tessel.architectures.shape import Recipe, Shape
from tessel.architectures.tower_costs import PATCHES, PROJECTOR, tower_rows
from tessel.architectures.towers import TOWERS
from tessel.architectures.work import work_of_block
from tessel.errors import DocumentError
from tessel.profiles.profile import StageCosts

CONFIGS = Path(__file__).parents[3] / "examples" / "configs"
SHAPE = Shape(recipe=Recipe(tokens=4096), micro_batch=2)
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
}
VISION = {"hidden_size": 32, "intermediate_size": 40, "patch_size": 4}
SMALL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma3": (
        {"mm_tokens_per_image": 16},
        {"num_attention_heads": 4, "num_hidden_layers": 3, "image_size": 32, "vision_use_head": False},
    ),
    "mistral3": (
        {"multimodal_projector_bias": True, "tie_word_embeddings": False},
        {"num_attention_heads": 4, "num_hidden_layers": 3, "image_size": 32, "head_dim": 8},
    ),
    "qwen2_5_vl": (
        {},
        {
            "num_heads": 4,
            "depth": 3,
            "in_channels": 3,
            "out_hidden_size": 64,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
    ),
}


def seen_by(name: str, **changes: Any) -> Architecture:
    model = load_architecture(CONFIGS / f"{name}.json")
    assert model.tower is not None
    return replace(model, tower=replace(model.tower, **changes))


def tower_in(model: Architecture) -> Tower:
    assert model.tower is not None
    return model.tower


def costs_of(model: Architecture, shape: Shape = SHAPE) -> dict[str, StageCosts]:
    price = Roofline(sheet=find_sheet("h100"), dtype="bf16")
    profile = profile_of_architecture(model, [shape], price, device="h100 (predicted)")
    return {layer.name: cost for layer, cost in zip(profile.layers, profile.tables[0].costs, strict=True)}


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("family", sorted(SMALL))
def test_parameters_and_operations_are_those_of_the_module_that_transformers_makes(family: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    counting = pytest.importorskip("torch.utils.flop_counter")
    whole, vision = SMALL[family]
    settings = transformers.AutoConfig.for_model(
        family, text_config=dict(TEXT), vision_config=VISION | vision, **whole
    )
    settings._attn_implementation = "eager"
    module = transformers.AutoModelForImageTextToText.from_config(settings, attn_implementation="eager")
    found = architecture_of(Config(settings.to_dict(), Path("config.json")))
    held = {id(each): each.numel() for each in module.parameters()}
    assert found.parameters == sum(held.values())

    side = 8  # patches
    counter = counting.FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        if family == "qwen2_5_vl":
            grid = torch.tensor([[1, side, side]])
            module.model.get_image_features(torch.rand(side**2, 2 * 3 * 4 * 4), image_grid_thw=grid)
        elif family == "mistral3":
            sizes = torch.tensor([[4 * side, 4 * side]])
            module.model.get_image_features(torch.rand(1, 3, 4 * side, 4 * side), image_sizes=sizes)
        else:
            module.model.get_image_features(torch.rand(1, 3, 4 * side, 4 * side))
    tower = replace(tower_in(found), tokens=side**2 // tower_in(found).merged)
    kernels: list[Kernel] = []

    def one_us(kernel: Kernel) -> float:
        kernels.append(kernel)
        return 1.0

    shape = Shape(recipe=Recipe(tokens=1024), micro_batch=1)
    alone = replace(found, tower=tower, blocks=())
    profile_of_architecture(alone, [shape], one_us, device="")
    forward = _forward_kernels(tower, shape)
    assert sum(kernel.flops for kernel in forward) == pytest.approx(counter.get_total_flops(), rel=1e-9)
    assert set(forward) <= set(kernels)


def _forward_kernels(tower: Tower, shape: Shape) -> list[Product | AttentionCore]:
    """Return the products and attentions of a tower's forward, of one picture: they count operations."""
    seen = replace(shape, recipe=replace(shape.recipe, tokens=tower.patches))
    blocks = [kernel for block in tower.blocks for _, kernel in work_of_block(block, seen).forward]
    ends = [Product(tower.patches, tower.patch.outputs, tower.patch.inputs)]
    ends += [Product(tower.tokens, each.outputs, each.inputs) for each in tower.projector]
    return [*ends, *(kernel for kernel in blocks if isinstance(kernel, Product | AttentionCore))]


def test_every_tower_is_tried() -> None:
    assert set(TOWERS) == set(SMALL)


@pytest.mark.parametrize(
    ("name", "published"), [("gemma-3-27b", 27_432_406_640), ("qwen2.5-vl-7b", 8_292_166_656)]
)
def test_parameters_are_those_of_the_published_weights(name: str, published: int) -> None:
    model = seen_by(name, tokens=256)
    assert model.parameters == published
    held = sum(cost.weight_bytes for cost in costs_of(model).values())
    assert held == 2 * (published + model.is_tied * model.head_parameters)


def test_a_tower_comes_before_the_language_model_and_hands_its_tokens_on() -> None:
    model = seen_by("gemma-3-27b", pictures=3)
    costs = costs_of(model)
    assert tuple(costs)[:30] == (*tower_rows(model.tower), "embed")
    assert costs[PATCHES].boundary_bytes == 2 * 2 * 3 * 4096 * 1152
    assert costs[PROJECTOR].boundary_bytes == 2 * 2 * 3 * 256 * 5376
    more = costs_of(seen_by("gemma-3-27b", pictures=6))
    for row in tower_rows(model.tower):
        assert more[row].forward_us > 1.8 * costs[row].forward_us
        assert more[row].saved_bytes == pytest.approx(2 * costs[row].saved_bytes)
    assert more["layers.7"] == costs["layers.7"]


def test_what_is_frozen_is_held_and_nothing_more() -> None:
    trained, frozen = (costs_of(seen_by("gemma-3-27b", is_frozen=flag)) for flag in (False, True))
    for row in tower_rows(seen_by("gemma-3-27b").tower)[:-1]:
        assert frozen[row].weight_bytes == trained[row].weight_bytes == trained[row].updated_bytes
        assert frozen[row].forward_us == trained[row].forward_us
        assert (frozen[row].backward_us, frozen[row].updated_bytes, frozen[row].saved_bytes) == (0, 0, 0)
    assert frozen[PROJECTOR].updated_bytes == trained[PROJECTOR].updated_bytes > 0
    assert frozen[PROJECTOR].backward_input_us == 0 < (trained[PROJECTOR].backward_input_us or 0)
    assert frozen["layers.0"] == trained["layers.0"]


def test_gradients_between_a_frozen_towers_projections_are_still_computed() -> None:
    frozen = costs_of(seen_by("qwen2.5-vl-7b", tokens=256, is_frozen=True))[PROJECTOR]
    trained = costs_of(seen_by("qwen2.5-vl-7b", tokens=256))[PROJECTOR]
    assert (frozen.backward_weight_us or 0) > (trained.backward_weight_us or 0)
    assert (frozen.backward_us or 0) < (trained.backward_us or 0)


def test_pictures_are_divided_over_a_context_parallel_group() -> None:
    model = seen_by("gemma-3-27b", pictures=2)
    one, four = costs_of(model), costs_of(model, replace(SHAPE, context_parallel=4))
    alone = costs_of(seen_by("gemma-3-27b", pictures=1), replace(SHAPE, micro_batch=1))
    assert four["vision.layers.0"].forward_us == alone["vision.layers.0"].forward_us
    assert four[PROJECTOR].boundary_bytes == one[PROJECTOR].boundary_bytes / 4


def test_windows_see_their_own_patches_alone() -> None:
    tower = tower_in(seen_by("qwen2.5-vl-7b", tokens=1024))
    cores = [
        kernel
        for kernel in _forward_kernels(tower, replace(SHAPE, micro_batch=1))
        if isinstance(kernel, AttentionCore)
    ]
    assert [core.tokens for core in cores[:8]] == [64] * 7 + [4096]
    assert cores[7].flops == 64 * cores[0].flops == 4 * 4096 * 4096 * 1280


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("vision_config", {"num_attention_heads": 7}, "hidden_size is 1152, no multiple of its 7 heads"),
        ("vision_config", {"num_hidden_layers": 2000}, "the tower has 2000 blocks"),
        ("", {"mm_tokens_per_image": 300}, "mm_tokens_per_image is 300, which does not divide"),
    ],
)
def test_an_impossible_tower_is_refused_by_the_value(part: str, change: dict[str, int], said: str) -> None:
    values = json.loads((CONFIGS / "gemma-3-27b.json").read_text())
    (values[part] if part else values).update(change)
    with pytest.raises(DocumentError, match=said):
        architecture_of(Config(values, Path("config.json")))

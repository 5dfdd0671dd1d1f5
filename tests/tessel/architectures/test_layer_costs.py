"""Profiles of predicted costs: rows, recipes, and memory that others measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tessel.architectures.families import load_architecture
from tessel.architectures.gpu_sheets import find_sheet
from tessel.architectures.kernels import Kernel
from tessel.architectures.layer_costs import profile_of_architecture
from tessel.architectures.roofline import Roofline
from tessel.architectures.shape import RECOMPUTED, Recipe, Shape
from tessel.exports.roles import Role, roles_of
from tessel.profiles.profile import Profile, StageCosts

CONFIGS = Path(__file__).parents[3] / "examples" / "configs"
RECIPE = Recipe(tokens=4096)
GIB = 2**30


def profile_of(name: str, shape: Shape) -> Profile:
    price = Roofline(sheet=find_sheet("h100"), dtype=shape.recipe.dtype)
    return profile_of_architecture(
        load_architecture(CONFIGS / f"{name}.json"), [shape], price, device="h100 (predicted)"
    )


def costs_of(name: str, recipe: Recipe = RECIPE, **degrees: int) -> dict[str, StageCosts]:
    profile = profile_of(name, Shape(recipe=recipe, micro_batch=1, **degrees))
    return {layer.name: cost for layer, cost in zip(profile.layers, profile.tables[0].costs, strict=True)}


def test_rows_have_the_roles_that_exports_ask_for() -> None:
    profile = profile_of("deepseek-v3", Shape(recipe=RECIPE, micro_batch=1))
    roles = roles_of([layer.name for layer in profile.layers])
    assert "".join(map(str, roles)) == "E" + "t" * 61 + "n" + "m" + "L"
    assert roles[0] is Role.EMBEDDING
    assert not any(layer.tie for layer in profile.layers)
    tied = profile_of("gpt-3-175b", Shape(recipe=RECIPE, micro_batch=1))
    assert [layer.name for layer in tied.layers if layer.tie] == ["embed", "lm_head"]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "nemotron-3-nano", "gpt-3-175b"])
def test_weights_are_two_bytes_a_parameter(name: str) -> None:
    model = load_architecture(CONFIGS / f"{name}.json")
    costs = costs_of(name)
    held = sum(cost.weight_bytes for cost in costs.values())
    again = model.head_parameters if model.is_tied else 0
    assert held == 2 * (model.parameters + again)
    assert sum(cost.updated_bytes for cost in costs.values()) == held, "all of it is trained, the norm, too"
    assert sum(cost.expert_bytes for cost in costs.values()) == 2 * sum(
        block.expert_parameters for block in model.blocks
    )


def test_halves_of_a_backward_are_the_whole() -> None:
    for name in ("llama-3.1-8b", "deepseek-v3", "nemotron-3-nano"):
        for cost in costs_of(name).values():
            assert cost.backward_us == pytest.approx(
                (cost.backward_input_us or 0) + (cost.backward_weight_us or 0)
            )
            assert cost.saved_for_weight_bytes is not None
            assert cost.saved_for_weight_bytes <= cost.saved_bytes


@pytest.mark.parametrize("part", RECOMPUTED)
def test_what_is_recomputed_is_kept_no_more_and_takes_time_again(part: str) -> None:
    name, row = ("llama-3.1-8b", "layers.5") if part == "mlp" else ("deepseek-v3", "layers.40")
    kept, again = (
        costs_of(name, replace(RECIPE, recompute=frozenset(parts)))[row] for parts in ((), (part,))
    )
    assert again.saved_bytes < kept.saved_bytes
    assert (again.backward_us or 0) > (kept.backward_us or 0)
    assert again.forward_us == kept.forward_us
    assert again.saved_bytes + again.peak_bytes == pytest.approx(kept.saved_bytes + kept.peak_bytes, abs=2)


def test_a_layer_that_predicts_a_further_token_runs_the_head_again() -> None:
    costs = costs_of("deepseek-v3")
    block, predictor, head = costs["layers.60"], costs["mtp.0"], costs["lm_head"]
    assert predictor.forward_us > block.forward_us + 0.9 * head.forward_us
    assert predictor.weight_bytes > block.weight_bytes


def test_a_loss_that_is_not_fused_keeps_more() -> None:
    fused, compiled, plain = (
        costs_of("llama-3.1-8b", replace(RECIPE, has_fused_loss=is_fused, has_compiled_loss=is_compiled))
        for is_fused, is_compiled in ((True, True), (False, True), (False, False))
    )
    logits = 4096 * 128256
    # Probabilities in 32 bits in place of a gradient in 16; what is written in place has none beside it.
    assert compiled["lm_head"].saved_bytes - fused["lm_head"].saved_bytes == (4 - 2) * logits
    assert compiled["lm_head"].peak_bytes - plain["lm_head"].peak_bytes == 4 * logits
    assert plain["lm_head"].peak_bytes - fused["lm_head"].peak_bytes == 2 * logits


def test_gradients_that_are_added_by_themselves_are_held_one_at_a_time() -> None:
    fuses, adds = (
        costs_of("llama-3.1-8b", replace(RECIPE, fuses_sums=flag))["layers.0"] for flag in (True, False)
    )
    # Queries, keys and values; the output; what goes up with its gate, the largest; what goes down.
    shapes = (6144 * 4096, 4096 * 4096, 28672 * 4096, 4096 * 14336)
    assert fuses.peak_bytes - adds.peak_bytes == 2 * (sum(shapes) - max(shapes))
    assert fuses.saved_bytes == adds.saved_bytes


def test_another_price_changes_times_and_nothing_else() -> None:
    model = load_architecture(CONFIGS / "llama-3.1-8b.json")
    shape = Shape(recipe=RECIPE, micro_batch=1)

    def one_us(kernel: Kernel) -> float:
        return 1.0

    found = profile_of_architecture(model, [shape], one_us, device="").tables[0].costs
    priced = profile_of("llama-3.1-8b", shape).tables[0].costs
    # A block: two norms, four products, a rotation, attention, an activation, two residuals.
    assert found[1].forward_us == 11
    assert [cost.saved_bytes for cost in found] == [cost.saved_bytes for cost in priced]
    assert [cost.weight_bytes for cost in found] == [cost.weight_bytes for cost in priced]


def test_costs_of_experts_go_down_with_their_degree() -> None:
    some, more = (costs_of("mixtral-8x7b", expert_parallel=degree)["layers.3"] for degree in (2, 8))
    assert some.expert_bytes == 4 * more.expert_bytes
    assert some.weight_bytes - some.expert_bytes == more.weight_bytes - more.expert_bytes

"""Work of layers, against torch's count of operations, sums written by hand, and laws of the degrees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tessel.architectures.architecture import Architecture, Block, Experts, FeedForward
from tessel.architectures.config import Config
from tessel.architectures.families import architecture_of, load_architecture
from tessel.architectures.kernels import AttentionCore, Beside, Exchange, Kernel, Product, Scan
from tessel.architectures.layer_costs import block_bytes
from tessel.architectures.shape import Recipe, Shape
from tessel.architectures.work import Work, work_of_block
from tessel.errors import UsageError

CONFIGS = Path(__file__).parents[3] / "examples" / "configs"
RECIPE = Recipe(tokens=4096)


def model(name: str) -> Architecture:
    return load_architecture(CONFIGS / f"{name}.json")


def flops(kernels: list[Kernel]) -> float:
    return sum(
        each.kernel.flops if isinstance(each, Beside) else each.flops
        for each in kernels
        if isinstance(each, Product | AttentionCore | Scan | Beside)
    )


def kept(work: Work) -> float:
    return sum(size for _, size in work.saved)


@pytest.mark.slow
@pytest.mark.torch
def test_operations_of_a_block_are_those_that_torch_counts() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    counter = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode(display=False)
    settings = transformers.AutoConfig.for_model(
        "llama",
        hidden_size=256,
        intermediate_size=640,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_hidden_layers=1,
        vocab_size=8,
        max_position_embeddings=128,
    )
    module = transformers.AutoModel.from_config(settings, attn_implementation="eager")
    with counter:
        module(torch.zeros(2, 128, dtype=torch.int64), use_cache=False).last_hidden_state.sum().backward()
    (block,) = architecture_of(Config(settings.to_dict(), Path("config.json"))).blocks
    work = work_of_block(block, Shape(recipe=Recipe(tokens=128), micro_batch=2))
    every = [*(each for _, each in work.forward), *work.backward_input, *work.backward_weight]
    # torch's attention computes all pairs, and its backward no scores again.
    (core,) = [each for _, each in work.forward if isinstance(each, AttentionCore)]
    products = flops([each for each in every if isinstance(each, Product)])
    assert products + 3 * 2 * core.flops == pytest.approx(counter.get_total_flops(), rel=1e-3)


def test_a_dense_block_keeps_what_is_counted_by_hand() -> None:
    # Elements of a token, Llama-3.1 70B: both norms' inputs and outputs, queries, keys, values, attention's
    # output, input and output of the gated activation; two bytes each, and the softmax's logarithms.
    work = work_of_block(model("llama-3.1-70b").blocks[0], Shape(recipe=RECIPE, micro_batch=1))
    elements = 4 * 8192 + 8192 + 2 * 1024 + 8192 + 2 * 28672 + 28672
    assert kept(work) == 4096 * (2 * elements + 4 * 64)


def test_backward_does_twice_the_products_of_the_forward() -> None:
    for name in ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gpt-3-175b"):
        work = work_of_block(model(name).blocks[-1], Shape(recipe=RECIPE, micro_batch=1))
        forward = [each for _, each in work.forward if isinstance(each, Product)]
        backward = [
            each for each in (*work.backward_input, *work.backward_weight) if isinstance(each, Product)
        ]
        assert flops(list(backward)) == pytest.approx(2 * flops(list(forward)))


@pytest.mark.parametrize("name", ["llama-3.1-70b", "qwen3-30b-a3b", "nemotron-3-nano"])
@pytest.mark.parametrize(
    "degrees",
    [{"tensor_parallel": 4}, {"context_parallel": 4}, {"tensor_parallel": 2, "context_parallel": 2}],
)
def test_devices_of_a_layer_share_its_operations_and_what_it_keeps(
    name: str, degrees: dict[str, int]
) -> None:
    count = 4
    for block in dict.fromkeys(model(name).blocks):
        whole = work_of_block(block, Shape(recipe=RECIPE, micro_batch=1))
        part = work_of_block(block, Shape(recipe=RECIPE, micro_batch=1, **degrees))
        assert flops([each for _, each in part.forward]) * count == pytest.approx(
            flops([each for _, each in whole.forward]),
            rel=0.04,  # two heads of keys are on four devices
        )
        # Each device of a tensor-parallel group has the rows of all experts of the group.
        rows = sum(
            2 * 4096 * part.top_k * (part.latent or block.hidden)
            for part in block.parts
            if isinstance(part, Experts)
        )
        again = (degrees.get("tensor_parallel", 1) - 1) * rows
        assert kept(part) * count == pytest.approx(kept(whole) + again, rel=0.05)


def test_weights_of_all_devices_are_the_model_with_what_each_holds_whole() -> None:
    for name in ("llama-3.1-70b", "mixtral-8x7b", "deepseek-v3"):
        for block in dict.fromkeys(model(name).blocks):
            dense, experts = block_bytes(block, Shape(recipe=RECIPE, micro_batch=1))
            assert dense + experts == 2 * block.parameters
            share, expert_share = block_bytes(
                block, Shape(recipe=RECIPE, micro_batch=1, tensor_parallel=2, expert_parallel=4)
            )
            assert expert_share * 8 == experts
            whole = sum(each.parameters for each in block.linears if each.split == "none")
            assert 2 * share == dense + 2 * (whole + block.vector_parameters)


def test_without_sequence_parallelism_norms_are_kept_whole() -> None:
    block = model("llama-3.1-70b").blocks[0]
    split, whole = (
        work_of_block(
            block,
            Shape(recipe=replace(RECIPE, has_sequence_parallel=flag), micro_batch=1, tensor_parallel=8),
        )
        for flag in (True, False)
    )
    # Inputs and outputs of two norms, of which seven eighths are on other devices.
    assert kept(whole) - kept(split) == 4 * 2 * 4096 * 8192 * 7 / 8
    assert {each.kind for _, each in whole.forward if isinstance(each, Exchange)} == {"all_reduce"}


def test_experts_rows_grow_with_imbalance_and_nothing_else_does() -> None:
    block = model("qwen3-30b-a3b").blocks[0]
    even, uneven = (
        work_of_block(
            block,
            Shape(recipe=replace(RECIPE, imbalance=factor), micro_batch=1, expert_parallel=8),
        )
        for factor in (1.0, 1.5)
    )
    added = flops([each for _, each in uneven.forward]) - flops([each for _, each in even.forward])
    grouped = [each for _, each in even.forward if isinstance(each, Product) and each.groups > 1]
    assert added == pytest.approx(0.5 * sum(each.flops for each in grouped))
    sent = [each.num_bytes for _, each in even.forward if isinstance(each, Exchange)]
    # Each device sends its tokens to eight experts of 2048 elements, and takes as many back.
    assert sent == [4096 * 8 * 2048 * 2] * 2


def test_whole_experts_take_the_tokens_of_one_device_each() -> None:
    block = model("qwen3-30b-a3b").blocks[0]
    shape = Shape(recipe=RECIPE, micro_batch=1, tensor_parallel=4, expert_parallel=8)
    whole = replace(shape, recipe=replace(RECIPE, splits_experts=False))
    divided, undivided = work_of_block(block, shape), work_of_block(block, whole)
    # The group's tokens for eight experts each, of which a device keeps its own share alone.
    assert kept(divided) - kept(undivided) == 2 * 4096 * 8 * 2048 * 3 / 4
    for halves in ("forward", "backward_input", "backward_weight"):
        kernels = [
            [each[1] if isinstance(each, tuple) and isinstance(each[0], str) else each for each in found]
            for found in (getattr(divided, halves), getattr(undivided, halves))
        ]
        assert flops(kernels[0]) == flops(kernels[1])
    assert block_bytes(block, shape) == block_bytes(block, whole)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_that_is_not_fused_keeps_the_scores_that_torch_keeps(dropout: float) -> None:
    torch = pytest.importorskip("torch")
    batch, heads, tokens = 2, 8, 64
    shape = (batch, heads, tokens, 16)
    query, key, value = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    stored = {}

    def pack(tensor: Any) -> Any:
        if tensor.shape[-2:] == (tokens, tokens):
            stored[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found = torch.softmax(query @ key.transpose(-1, -2), dim=-1)
        if dropout:
            found, _ = torch.ops.aten.native_dropout(found, dropout, train=True)
        (found @ value).sum()
    block = model("llama-3.1-8b").blocks[0]
    recipe = Recipe(tokens=tokens, has_flash_attention=False)
    unfused, fused = (
        kept(work_of_block(block, Shape(recipe=each, micro_batch=batch)))
        for each in (
            replace(recipe, has_dropout=bool(dropout)),
            replace(recipe, has_flash_attention=True, has_dropout=bool(dropout)),
        )
    )
    # In place of the sums' logarithms, 32 bits for each of 32 heads.
    scores = unfused - fused + 4 * batch * tokens * 32
    assert scores / 32 == sum(each.untyped_storage().nbytes() for each in stored.values()) / heads


def test_overlapped_exchanges_are_all_beside_products() -> None:
    shape = Shape(recipe=replace(RECIPE, overlaps_tensor=True), micro_batch=1, tensor_parallel=4)
    alone = replace(shape, recipe=RECIPE)
    block = model("llama-3.1-70b").blocks[0]
    found, without = work_of_block(block, shape), work_of_block(block, alone)
    exchanges = [each for _, each in without.forward if isinstance(each, Exchange)]
    exchanges += [each for each in without.backward_input if isinstance(each, Exchange)]
    beside = [each for _, each in found.forward if isinstance(each, Beside)]
    beside += [each for each in (*found.backward_input, *found.backward_weight) if isinstance(each, Beside)]
    assert len(beside) == len(exchanges) == 10
    left = (*found.backward_input, *(each for _, each in found.forward))
    assert not any(isinstance(each, Exchange) for each in left)


def test_windows_and_recomputation_are_refused_or_counted() -> None:
    core = AttentionCore(1, 1, 1, 4096, 4096, 64, 64, window=128)
    assert core.seen == pytest.approx(128, rel=0.02)
    with pytest.raises(UsageError, match=r"--recompute has 'mlps'; choose of layernorm"):
        Recipe(tokens=1, recompute=frozenset({"mlps"}))
    with pytest.raises(UsageError, match=r"--imbalance is 0\.5"):
        Recipe(tokens=1, imbalance=0.5)
    with pytest.raises(UsageError, match="--seq is 0"):
        Recipe(tokens=0)


def test_a_block_of_experts_uses_the_parameters_of_some() -> None:
    experts = Experts(count=8, top_k=2, expert=FeedForward(width=4))
    block = Block(hidden=4, parts=(experts,), norm_parameters=4)
    assert block.parameters - block.used_parameters == 6 * 3 * 4 * 4

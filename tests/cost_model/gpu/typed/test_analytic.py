"""Work is what one counts by hand, and parameters that made latencies are found again from few of them."""

import itertools

import numpy as np
import pytest

from cost_model.errors import CostModelError
from cost_model.gpu.typed.analytic import PARAMETERS, Fitted, analytic_us, expected, fit, start_of
from cost_model.gpu.typed.kernels import (
    Attention,
    Collective,
    Exchange,
    Experts,
    Kernels,
    Product,
    TypedKernel,
)
from cost_model.gpu.typed.sheets import GPU_SHEETS, find_sheet
from cost_model.gpu.typed.work import Work, work_of

H100 = find_sheet("h100")


def work(kernel: TypedKernel) -> Work:
    return work_of(Kernels.of_one_kind([kernel]), H100)


def test_a_product_reads_rounds_and_writes_what_its_types_hold() -> None:
    rows, columns, inner = 300, 500, 700
    bfloat16 = work(Product(rows, columns, inner))
    assert bfloat16.flops[0] == 2 * rows * columns * inner
    assert bfloat16.num_bytes[0] == 2 * (rows * inner + inner * columns + rows * columns)
    rounded = work(Product(rows, columns, inner, "fp8"))
    assert rounded.num_bytes[0] == 4 * rows * inner + inner * columns + 2 * rows * columns
    assert rounded.tflops[0] == 2 * bfloat16.tflops[0] + 1  # 1979 beside 989


@pytest.mark.parametrize(("past", "window"), [(0, 0), (40, 0), (0, 16), (40, 16), (8, 30)])
def test_attention_computes_the_pairs_that_its_mask_leaves(past: int, window: int) -> None:
    length, heads, kv_heads, size, batch = 50, 8, 2, 64, 3
    queries, keys = np.arange(length)[:, None] + past, np.arange(length + past)[None, :]
    seen = (keys <= queries) & ((keys > queries - window) if window else True)
    found = work(Attention(batch, length, heads, kv_heads, size, past, window))
    assert found.flops[0] == 4 * batch * heads * size * seen.sum()
    assert found.num_bytes[0] == 2 * batch * size * (2 * heads * length + 2 * kv_heads * (length + past))


def test_experts_with_tokens_are_those_of_a_draw() -> None:
    rng = np.random.default_rng(0)
    tokens, top_k, experts, devices = 24, 4, 64, 8
    drawn = [
        len({int(expert) for _ in range(tokens) for expert in rng.permutation(experts)[:top_k] if expert < 8})
        for _ in range(400)
    ]
    found = work(Experts(tokens, 1024, 512, top_k, experts, 1, devices))
    assert found.groups[0] == pytest.approx(np.mean(drawn), rel=0.02)
    assert found.flops[0] == 6 * tokens * top_k * 1024 * 512 / devices


def test_a_ring_sends_what_is_left_of_the_whole() -> None:
    reduced, gathered = work(Collective("all_reduce", 8, 1024)), work(Collective("all_gather", 8, 1024))
    assert (reduced.num_bytes[0], reduced.blocks[0]) == (2 * 1024 * 14 / 8, 14)
    assert (gathered.num_bytes[0], gathered.blocks[0]) == (2 * 1024 * 7 / 8, 7)


def test_a_token_goes_to_as_many_devices_as_a_draw_says() -> None:
    rng = np.random.default_rng(0)
    targets = np.mean([len(set(rng.integers(0, 8, 6).tolist())) for _ in range(4000)])
    found = work(Exchange("dispatch", 100, 64, 6, 64))
    assert found.num_bytes[0] == pytest.approx(2 * 100 * 64 * targets * 7 / 8, rel=0.02)


def products() -> Kernels:
    powers = (16, 128, 1024, 4096, 8192)
    return Kernels.of_one_kind([Product(*each) for each in itertools.product(powers, powers, powers)])


def test_parameters_are_found_again_from_what_they_made() -> None:
    """Noise of 3 %: shares come back within 5 %, and unseen kernels within the noise."""
    truth = np.log([2.0, 2000.0, 250.0, 0.7, 0.6, 20.0])
    kernels, rng = products(), np.random.default_rng(0)
    measured = analytic_us(kernels, H100, truth) * np.exp(rng.normal(0, 0.03, len(kernels)))
    part = np.arange(0, len(kernels), 2)
    found = fit(kernels.some(part), H100, measured[part], start_of("product"))
    assert np.exp(found[3:5]) == pytest.approx([0.7, 0.6], rel=0.05)
    rest = np.arange(1, len(kernels), 2)
    errors = np.log(analytic_us(kernels.some(rest), H100, found) / measured[rest])
    assert np.abs(errors).mean() < 0.05


def test_no_kernel_is_faster_than_its_peaks_allow() -> None:
    for kernels in (products(), Kernels.of_one_kind([Product(64, 64, 64), Product(10**5, 10**4, 10**4)])):
        found = work_of(kernels, H100)
        bound = np.maximum(found.flops / H100.device.tensor_tflops / 1e6, 0)
        assert (analytic_us(kernels, H100, start_of("product")) > bound).all()


def test_an_unknown_device_is_expected_on_the_line_of_the_known() -> None:
    """Parameters on a line over operations a cycle are found, but for the prior of no slope."""
    known = [GPU_SHEETS[name] for name in ("A100 SXM 80GB", "L40S", "H100 SXM", "RTX PRO 6000")]
    same = [Fitted(sheet, "bfloat16", np.full(len(PARAMETERS["product"]), 0.5)) for sheet in known]
    assert expected(same, "bfloat16", GPU_SHEETS["B200"]) == pytest.approx(0.5)
    rate = {
        sheet.device.name: np.log2(
            sheet.device.tensor_tflops / sheet.device.num_multiprocessors / sheet.device.clock_mhz
        )
        for sheet in (*known, GPU_SHEETS["B200"])
    }
    line = [Fitted(sheet, "bfloat16", np.array([-rate[sheet.device.name]])) for sheet in known]
    level = np.mean([each.logs for each in line])
    found = expected(line, "bfloat16", GPU_SHEETS["B200"])[0]
    assert -rate["B200"] < found < level


def test_a_type_that_one_generation_has_leans_on_those_computed_alike() -> None:
    """Rounded types count a quarter as much as the same one, those in 16 bits not at all."""
    rtx, h100, b200 = (GPU_SHEETS[name] for name in ("RTX PRO 6000", "H100 SXM", "B200"))
    fitted = [
        Fitted(rtx, "nvfp4", np.array([1.0])),
        Fitted(rtx, "fp8", np.array([0.0])),
        Fitted(rtx, "bfloat16", np.array([100.0])),
    ]
    assert expected(fitted, "nvfp4", rtx) == pytest.approx(4 / 5)
    assert expected(fitted, "bfloat16", h100) == pytest.approx(100)
    assert expected(fitted, "all_reduce", b200) == pytest.approx(101 / 3)


def test_what_a_cache_holds_from_the_call_before_is_the_small_working_sets() -> None:
    """L40S holds 96 MiB, H100 50 in two copies; six weights take turns, inputs and results stay."""
    l40s, kernels = (
        find_sheet("l40s"),
        Kernels.of_one_kind([Product(16, 1024, 1024), Product(16, 8192, 8192)]),
    )
    small, large = work_of(kernels, l40s).cached_bytes / work_of(kernels, l40s).num_bytes
    assert small > 0.99
    assert large < 0.01
    between = Kernels.of_one_kind([Product(16, 2048, 2048)])  # 6 · 8 MiB
    assert work_of(between, l40s).cached_bytes[0] > 0.9 * work_of(between, l40s).num_bytes[0]
    assert work_of(between, H100).cached_bytes[0] < 0.1 * work_of(between, H100).num_bytes[0]


def test_devices_without_switches_share_their_link() -> None:
    one, eight = Collective("all_gather", 2, 2**28), Collective("all_gather", 8, 2**28)
    kernels, sheet = Kernels.of_one_kind([one, eight]), find_sheet("l40s")
    alone, shared = (
        analytic_us(kernels, sheet, np.log([4.0, 1.0, 0.7, sharing, 1e-9])) for sharing in (1e-9, 2.0)
    )
    assert shared / alone == pytest.approx([1, 16], rel=1e-3)


def test_a_type_that_a_gpu_lacks_and_an_impossible_extent_are_refused() -> None:
    with pytest.raises(
        CostModelError, match=r"A100 SXM 80GB has no products in fp8; choose another data type"
    ):
        work_of(Kernels.of_one_kind([Product(8, 8, 8, "fp8")]), find_sheet("a100"))
    with pytest.raises(CostModelError, match="rows of product is 0"):
        Kernels.of_one_kind([Product(0, 8, 8)])
    with pytest.raises(CostModelError, match="data type 'fp3' is not known; choose one of bfloat16"):
        Kernels.of_one_kind([Product(8, 8, 8, "fp3")])
    with pytest.raises(CostModelError, match="operation 'gossip' is not known"):
        Kernels.of_one_kind([Collective("gossip", 8, 8)])  # type: ignore[arg-type]  # what is tested
    with pytest.raises(CostModelError, match="no kernels by data type are known for a GPU named 'T4'"):
        find_sheet("T4")

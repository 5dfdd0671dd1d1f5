"""Learned prices are the model's own where kernels were measured, and the roofline's elsewhere."""

import pytest

from cost_model.gpu.typed.kernels import Attention, Collective
from cost_model.gpu.typed.kernels import Product as TypedProduct
from cost_model.gpu.typed.model import gpu_kernel_us
from tessel.architectures.gpu_sheets import find_sheet
from tessel.architectures.kernels import AttentionCore, Beside, Exchange, Moved, Product
from tessel.architectures.learned import learned_price
from tessel.architectures.roofline import Roofline
from tessel.errors import UsageError

ROOFLINE = Roofline(sheet=find_sheet("h100"))
PRICE = learned_price(ROOFLINE)


def test_measured_kinds_have_the_models_price() -> None:
    product = gpu_kernel_us(TypedProduct(4096, 8192, 2048), "h100").latency_us
    assert PRICE(Product(4096, 8192, 2048)) == pytest.approx(product)
    gradient = gpu_kernel_us(TypedProduct(8192, 2048, 4096), "h100").latency_us
    assert PRICE(Product(4096, 8192, 2048, sums_rows=True)) == pytest.approx(gradient)
    core = AttentionCore(1, 32, 8, 8192, 8192, 128, 128)
    forward = gpu_kernel_us(Attention(1, 8192, 32, 8, 128), "h100").latency_us
    assert PRICE(core) == pytest.approx(forward)
    assert PRICE(core._replace(is_backward=True)) == pytest.approx(forward * 2.5 / 0.8)
    ring = gpu_kernel_us(Collective("all_gather", 8, 2**24), "h100").latency_us
    assert PRICE(Exchange("all_gather", 2**25, 8, 8)) == pytest.approx(ring)
    assert PRICE(Beside(core, Exchange("ring", 1e6, 8, 8))) >= forward


def test_what_was_not_measured_keeps_the_data_sheets_price() -> None:
    for kernel in (
        Moved(1e9),
        Product(4096, 2048, 2048, groups=8),
        Exchange("all_reduce", 1e8, 16, 64),
        Exchange("all_to_all", 1e8, 8, 8, 4),
        Exchange("all_gather", 1e8, 1, 1),
    ):
        assert PRICE(kernel) == ROOFLINE(kernel)


def test_measured_and_stated_prices_of_large_products_agree_within_a_third() -> None:
    """Both were made of kernels on the same GPUs, in ways that share nothing."""
    for rows in (4096, 8192, 16384):
        kernel = Product(rows, 8192, 8192)
        assert PRICE(kernel) == pytest.approx(ROOFLINE(kernel), rel=0.33)


def test_a_gpu_without_measured_kernels_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"--price model: no kernels by data type are known for a GPU named 'mi300x'"
    ):
        learned_price(Roofline(sheet=find_sheet("mi300x")))
    with pytest.raises(UsageError, match=r"A100 SXM 80GB has no products in fp8"):
        learned_price(Roofline(sheet=find_sheet("a100"), dtype="fp8"))
    with pytest.raises(UsageError, match="leave --mfu and --efficiency out"):
        learned_price(Roofline(sheet=find_sheet("h100"), mfu=0.4))

"""Prices of a data sheet, against times worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tessel.architectures.gpu_sheets import GPU_SHEETS, find_sheet
from tessel.architectures.kernels import AttentionCore, Beside, Exchange, Moved, Product
from tessel.architectures.roofline import LAUNCH_US, Roofline
from tessel.errors import UsageError

H100 = find_sheet("h100")
PRICE = Roofline(sheet=H100)


def test_a_large_product_takes_its_operations_at_the_stated_share() -> None:
    product = Product(8192, 8192, 8192)
    expected = 2 * 8192**3 / (989e12 * 0.78 * 0.92) * 1e6
    assert PRICE(product) == pytest.approx(expected + LAUNCH_US)
    assert Roofline(sheet=H100, efficiency=0.5)(product) == pytest.approx(
        2 * 8192**3 / (989e12 * 0.5) * 1e6 + LAUNCH_US
    )
    assert Roofline(sheet=H100, dtype="fp8")(product) < PRICE(product)


def test_a_thin_product_takes_its_traffic() -> None:
    assert PRICE(Product(1, 8192, 8192)) == pytest.approx(2 * 8192**2 / (3352e3 * 0.75) + LAUNCH_US, rel=1e-3)


def test_with_a_given_utilisation_operations_alone_count() -> None:
    price = Roofline(sheet=H100, mfu=0.4)
    assert price(Product(4096, 4096, 4096)) == pytest.approx(2 * 4096**3 / (989e12 * 0.4) * 1e6)
    assert price(Moved(1e9)) == 0.0
    assert price(Exchange("all_gather", 1e8, 8, 8)) == PRICE(Exchange("all_gather", 1e8, 8, 8))


def test_a_ring_within_a_node_and_between_nodes() -> None:
    near, far = (PRICE(Exchange("all_gather", 8e8, 8, span)) for span in (8, 16))
    assert near == pytest.approx(7 * (2.0 + 1e8 / (450e3 * 0.75)))
    assert far == pytest.approx(7 * (5.0 + 1e8 / (50e3 * 0.85)))
    both = PRICE(Exchange("all_reduce", 8e8, 8, 8))
    assert both == pytest.approx(2 * near)
    assert PRICE(Exchange("all_gather", 8e8, 1, 1)) == 0.0


def test_sending_a_token_once_to_a_node_is_no_slower_and_bounded_by_the_nodes() -> None:
    nccl = Roofline(sheet=H100, dispatch="nccl")
    for nodes in (1, 2, 8, 32):
        exchange = Exchange("all_to_all", 1e9, 8 * nodes, 8 * nodes, 8)
        assert PRICE(exchange) <= nccl(exchange) * (1 + 1e-9)
    # With many nodes each of eight experts is on a node of its own, nearly.
    assert PRICE(exchange) == pytest.approx(nccl(exchange), rel=0.15)
    single = Exchange("all_to_all", 1e9, 64, 64, 1)
    assert PRICE(single) == nccl(single)


def test_beside_takes_the_longer() -> None:
    core = AttentionCore(1, 8, 8, 4096, 8192, 128, 128)
    short, long = Exchange("ring", 1e3, 2, 2), Exchange("ring", 1e10, 2, 2)
    assert PRICE(Beside(core, short)) == PRICE(core)
    assert PRICE(Beside(core, long)) == PRICE(long)


def test_prices_grow_with_sizes() -> None:
    sizes = (1, 100, 4096, 32768)
    for smaller, larger in pairwise(sizes):
        assert PRICE(Product(smaller, 4096, 4096)) < PRICE(Product(larger, 4096, 4096))
        assert PRICE(Moved(smaller)) < PRICE(Moved(larger))


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("H100", "h100"),
        ("RTX-Pro-6000", "rtx pro 6000"),
        ("rtx_pro_6000", "rtx pro 6000"),
        ("GB200", "gb200"),
    ],
)
def test_a_sheet_is_found_however_its_name_is_separated(name: str, known: str) -> None:
    assert find_sheet(name).name == known


def test_an_unknown_gpu_is_refused_with_the_choices() -> None:
    with pytest.raises(UsageError, match="--gpu 'h1000' is not known; did you mean h100"):
        find_sheet("h1000")
    with pytest.raises(UsageError, match=r"choose one of a100, h100"):
        find_sheet("tpu")


def test_sheets_are_within_what_is_physical() -> None:
    for sheet in GPU_SHEETS.values():
        for share in (
            sheet.shares.products,
            sheet.shares.attention,
            sheet.shares.fast,
            sheet.shares.sustained,
        ):
            assert 0 < share <= 1
        assert 0 <= sheet.shares.fp8 <= 1
        assert (sheet.shares.fp8 > 0) == (sheet.fp8_tflops > 0)
        assert sheet.fast_gb_s >= sheet.network_gb_s

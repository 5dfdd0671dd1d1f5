"""A backend with decisions is another one to records, and the same one in another process."""

from __future__ import annotations

import pytest
from tvm import relax

from tests.samples.partition_samples import kernels_of, partition_module
from tuner.backends.cpu.nhwc import Nhwc
from tuner.backends.cpu.packed_matmul import PackedMatmul
from tuner.backends.cpu.tuned.chosen_tiles import ChosenTiles
from tuner.backends.cpu.tuned.families import space_of
from tuner.backends.cpu.tuned.tuned_backend import with_chosen_tiles
from tuner.backends.environment import environment_of
from tuner.backends.registry import make_backend
from tuner.backends.tvm.native import TvmNative
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

NAME = "product:49x64x49"


def tiles(number: int = 5) -> ChosenTiles:
    return ChosenTiles({NAME: space_of(NAME).decisions_of(space_of(NAME).rows[number])})


def test_records_of_tuned_and_untuned_kernels_are_apart() -> None:
    target = resolve_target("cpu", num_threads=1)
    backends = [PackedMatmul(), PackedMatmul(tiles(5).text), PackedMatmul(tiles(6).text)]
    assert len({each.settings for each in backends}) == 3
    assert len({environment_of(target, each).versions for each in backends}) == 3, "so are whole programs"


def test_a_worker_makes_the_same_backend() -> None:
    tuned = PackedMatmul(tiles().text)
    again = make_backend(tuned.reference)
    assert isinstance(again, PackedMatmul)
    assert again.chosen == tuned.chosen
    assert again.reference == tuned.reference
    assert "," not in tuned.reference, "--backends parts references by commas"
    assert PackedMatmul().reference == "packed_matmul"


def test_decisions_go_to_the_backends_that_run_the_kernels() -> None:
    given = (TvmNative(), Nhwc(), PackedMatmul())
    native, nhwc, product = with_chosen_tiles(given, tiles())
    assert native is given[0]
    assert nhwc.reference == "nhwc"
    assert isinstance(product, PackedMatmul)
    assert product.chosen == tiles()
    assert with_chosen_tiles(given, ChosenTiles()) == given


def test_only_named_kernels_change() -> None:
    target = resolve_target("cpu", num_threads=1)

    def lowered(backend: PackedMatmul, columns: int) -> list[str]:
        module = partition_module("packed_matmul", [(49, 64), (64, columns)], relax.op.matmul)
        return sorted(map(str, kernels_of(backend.lower(module, ["part"], target))))

    tuned = PackedMatmul(tiles().text)
    assert lowered(tuned, 49) != lowered(PackedMatmul(), 49)
    assert lowered(tuned, 48) == lowered(PackedMatmul(), 48)


def test_kernels_are_listed_as_they_are_lowered() -> None:
    target = resolve_target("cpu", num_threads=1)
    module = partition_module("packed_matmul", [(49, 64), (64, 49)], relax.op.matmul)
    backend = PackedMatmul(tiles().text)
    assert [each.name for each in backend.kernels_of(module, ["part"], target)] == [NAME]
    assert backend.chooser is backend.chosen, "listing leaves no trace"

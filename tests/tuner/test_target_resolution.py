"""Names become targets, and the environment says what a measurement depends on."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tuner.backends.registry import make_backend
from tuner.errors import UnknownNameError
from tuner.target_resolution import environment_of, known_targets, resolve_target, tvm_target

pytestmark = pytest.mark.tvm


def test_the_cpu_is_named_by_its_exact_micro_architecture() -> None:
    attributes = json.loads(resolve_target("cpu").tvm_json)
    assert attributes["kind"] == "llvm"
    assert attributes["mcpu"] not in ("", "native", "generic")
    assert attributes["num-cores"] >= 1


def test_threads_do_not_change_the_target_but_its_environment() -> None:
    one, two = (resolve_target("cpu", num_threads=count) for count in (1, 2))
    assert one.text == two.text
    assert environment_of(one) != environment_of(two)
    assert environment_of(two).num_threads == 2


def test_a_library_belongs_to_the_environment_of_its_own_backend_only() -> None:
    target = resolve_target("cpu", num_threads=1)
    plain = dict(environment_of(target, make_backend("tvm")).versions)
    assert set(plain) == {"apache-tvm", "apache-tvm-ffi", "tvm-kernels"}
    assert "numpy" in dict(environment_of(target, make_backend("blas")).versions)
    assert environment_of(target, None) == environment_of(target)


@pytest.mark.parametrize("name", ["nvidia/nvidia-a100", "nvidia/nvidia-h100", "nvidia/nvidia-h200"])
def test_gpu_tags_need_no_gpu(name: str) -> None:
    target = resolve_target(name)
    assert target.kind == "cuda"
    assert target.num_threads == 1
    assert str(tvm_target(target).kind) == "cuda"


def test_the_h200_is_an_h100_to_the_compiler() -> None:
    assert resolve_target("nvidia/nvidia-h200").tvm_json == resolve_target("nvidia/nvidia-h100").tvm_json


def test_a_remote_target_names_its_tracker() -> None:
    target = resolve_target("rpc://farm:9190/gpu?target=nvidia/nvidia-a100")
    assert target.rpc == "farm:9190/gpu"
    assert target.kind == "cuda"


@pytest.mark.parametrize(
    "text",
    [
        "rpc://farm/gpu?target=x",
        "rpc://farm:9190?target=x",
        "rpc://farm:9190/gpu",
        "rpc://farm:9190/gpu?target=cpu",
    ],
)
def test_an_incomplete_remote_target_says_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"rpc://"):
        resolve_target(text)


@pytest.mark.parametrize("text", ["", "gpu", "nvidia/nvidia-a1000", "llvm"])
def test_an_unknown_target_is_named_with_what_there_is(text: str) -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean|use cpu"):
        resolve_target(text)


@pytest.mark.parametrize("count", [0, -1])
def test_a_number_of_threads_is_positive(count: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        resolve_target("cpu", num_threads=count)


def test_every_known_target_resolves() -> None:
    names = known_targets()
    assert {"cpu", "cuda", "nvidia/nvidia-h200"} <= set(names)
    for name in names[2::40]:
        assert resolve_target(name).name == name


def test_the_blas_is_numpys_whatever_else_was_loaded_first() -> None:
    code = "import {first}, {second}; from tuner.target_resolution import blas_version; print(blas_version())"
    orders = (("scipy.linalg", "numpy"), ("numpy", "scipy.linalg"), ("numpy", "numpy"))
    found = {
        subprocess.run(
            [sys.executable, "-c", code.format(first=first, second=second)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for first, second in orders
    }
    assert len(found) == 1

"""Names become targets, and the environment says what a measurement depends on."""

from __future__ import annotations

import functools
import importlib
import json

import pytest
import threadpoolctl
import tvm
from tvm.target import codegen

from tuner.backends.environment import environment_of
from tuner.backends.registry import make_backend
from tuner.errors import TunerError, UnknownNameError
from tuner.targets import resolution
from tuner.targets.resolution import (
    blas_version,
    check_measurable,
    cpu_difference,
    gpu_difference,
    known_targets,
    measuring_obstacle,
    resolve_target,
    tvm_target,
)

pytestmark = pytest.mark.tvm


def test_the_cpu_is_named_by_its_exact_micro_architecture() -> None:
    attributes = json.loads(resolve_target("cpu").tvm_json)
    assert attributes["kind"] == "llvm"
    assert attributes["mcpu"] not in ("", "native", "generic")
    assert attributes["num-cores"] >= 1


def test_code_for_this_machine_leaves_out_what_a_hypervisor_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    def features() -> set[str]:
        return set(map(str, codegen.llvm_get_cpu_features(tvm_target(resolve_target("cpu")))))

    here = resolution._host_features()
    used = {name for name in features() if name.startswith(resolution._COMPUTING)}
    assert used <= here
    if "fma" not in used:
        pytest.skip("this machine has no FMA that could be hidden")
    monkeypatch.setattr(resolution, "_host_features", lambda: here - {"fma"})
    assert "-fma" in json.loads(resolve_target("cpu").tvm_json)["mattr"]
    assert "fma" not in features()


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


@pytest.mark.parametrize(
    "text", ["rpc://farm:9190/gpu?target=nvidia/nvidia-a100", "rpc://farm:9190/gpu?target=cpu", "rpc://farm"]
)
def test_a_remote_target_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"only `tessel partition`, `stages` and `tune` measure there; for anything"
    ):
        resolve_target(text)


def test_code_for_an_older_processor_runs_here() -> None:
    here = resolve_target("cpu")
    same = json.loads(here.tvm_json)["mcpu"]
    assert resolve_target(f"llvm -mcpu={same}").tvm_json == here.tvm_json
    older = resolve_target("llvm -mcpu=x86-64 -mattr=+sse4.2,+popcnt", num_threads=1)
    attributes = json.loads(older.tvm_json)
    assert (attributes["mcpu"], attributes["mattr"]) == ("x86-64", ["+sse4.2", "+popcnt"])
    assert older.text != here.text, "its measurements are kept apart"
    assert measuring_obstacle(older) is None
    assert str(tvm_target(older).attrs["mcpu"]) == "x86-64"
    cores = json.loads(here.tvm_json)["num-cores"] + 1
    assert "number of cores" in str(measuring_obstacle(resolve_target(f"llvm -num-cores={cores}")))


def test_what_is_only_quick_on_another_processor_is_no_obstacle() -> None:
    found = resolution._lacking(frozenset(("avx2", "ermsb", "slow-3ops-lea")), frozenset(("avx2",)))
    assert found == []
    assert resolution._lacking(frozenset(("avx2", "fma")), frozenset(("avx2",))) == ["fma"]


def test_code_that_the_processor_cannot_run_is_not_measured() -> None:
    obstacle = measuring_obstacle(resolve_target("llvm -mattr=+fma4,+tbm,+xop"))
    assert "which this machine's processor lacks" in str(obstacle)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("llvm -mcpu=nonsense", "none of this machine's architecture"),
        ("llvm -mcpu", "has an option '-mcpu', which is not known"),
        ("llvm haswell", "give -mcpu=…, -mattr=…, -num-cores=…"),
        ("llvm -num-cores=none", "give a number from 1 on"),
    ],
)
def test_options_of_code_are_refused_with_what_to_give(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        resolve_target(text)


def test_only_the_processor_that_is_here_is_measured() -> None:
    assert measuring_obstacle(resolve_target("cpu")) is None
    here = json.loads(resolve_target("cpu").tvm_json)
    assert cpu_difference({"kind": "llvm", **here}, here) is None
    assert "its processor (mcpu) is cortex-a72" in str(cpu_difference({**here, "mcpu": "cortex-a72"}, here))
    more = {**here, "num-cores": here["num-cores"] + 1}
    assert "number of cores" in str(cpu_difference(more, here))
    with pytest.raises(TunerError, match=r"'arm/rasp4b' cannot be measured here .* use --target cpu"):
        check_measurable(resolve_target("arm/rasp4b"))


@pytest.mark.parametrize(
    ("tag", "device_name", "same"),
    [
        ("nvidia/nvidia-h100", "NVIDIA H100 80GB HBM3", True),
        ("nvidia/nvidia-h200", "NVIDIA H200", True),
        ("nvidia/nvidia-h100", "NVIDIA H200", False),
        ("nvidia/nvidia-a100", "NVIDIA A100-SXM4-40GB", True),
        ("nvidia/nvidia-v100", "Tesla V100-SXM2-16GB", True),
        ("nvidia/geforce-rtx-3070", "NVIDIA GeForce RTX 3070", True),
        ("nvidia/geforce-rtx-3070", "NVIDIA GeForce RTX 3070 Ti", False),
        ("nvidia/geforce-rtx-3070", "NVIDIA GeForce RTX 3070 Laptop GPU", False),
        ("cuda", "NVIDIA GeForce RTX 3070", True),
    ],
)
def test_a_tag_is_measured_on_the_gpu_that_it_names_only(tag: str, device_name: str, same: bool) -> None:
    wanted = {"kind": "cuda", "arch": "sm_90a"}
    here = {"arch": "sm_90", "device_name": device_name}
    assert (gpu_difference(tag, wanted, here) is None) == same
    other = gpu_difference("nvidia/nvidia-h100", {"arch": "sm_90a"}, {**here, "arch": "sm_80"})
    assert other is not None
    assert "architecture" in other


@pytest.mark.skipif(tvm.cuda(0).exist, reason="there is a GPU")
def test_a_gpu_that_is_not_here_is_not_measured() -> None:
    with pytest.raises(TunerError, match=r"no NVIDIA GPU .* `tessel partition` predict for it"):
        check_measurable(resolve_target("nvidia/nvidia-h100"))
    with pytest.raises(TunerError, match="needs an NVIDIA GPU"):
        resolve_target("cuda")


def test_no_device_is_named_that_nothing_is_built_for() -> None:
    assert not [name for name in known_targets() if name.startswith(("apple/", "qcom/hexagon"))]
    with pytest.raises(UnknownNameError):
        resolve_target("apple/m1-gpu")


@pytest.mark.parametrize("text", ["", "gpu", "nvidia/nvidia-a1000", "llvmm"])
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


def test_the_blas_is_numpys_whatever_else_was_loaded_first(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("scipy.linalg")  # has a BLAS of its own
    loaded = threadpoolctl.threadpool_info()
    found = set()
    for order in (loaded, loaded[::-1]):
        monkeypatch.setattr(threadpoolctl, "threadpool_info", functools.partial(list, order))
        found.add(blas_version())
    assert len(found) == 1

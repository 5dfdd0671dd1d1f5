"""Backends are found by reference, and what cannot be had says why."""

from __future__ import annotations

import pytest

from tuner.backends.registry import available_backends, backend_names, backends_for, make_backend
from tuner.errors import TunerError, UnknownNameError
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

pytestmark = pytest.mark.tvm

GPU = Target(name="cuda", kind="cuda", tvm_json='{"arch":"sm_90a","kind":"cuda"}', num_threads=1)


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target("cpu", num_threads=1)


def test_backends_come_in_the_order_that_they_are_named_in(target: Target) -> None:
    names = [backend.name for backend in backends_for(["blas", "tvm"], target)]
    assert names == ["blas", "tvm"]


def test_none_means_every_backend_that_can_run(target: Target) -> None:
    names = [backend.name for backend in backends_for(None, target)]
    assert names == [backend.name for backend in available_backends(target)]
    assert {"tvm", "blas"} <= set(names)


def test_an_unknown_name_lists_those_there_are(target: Target) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'blas'") as caught:
        backends_for(["bals"], target)
    assert all(name in str(caught.value) for name in backend_names())


@pytest.mark.parametrize("reference", ["no.such.module:Backend", "examples.own_backend:Missing"])
def test_a_reference_that_cannot_be_imported_says_what_to_give(reference: str) -> None:
    with pytest.raises(UnknownNameError, match="Python path"):
        make_backend(reference)


def test_the_published_closure_can_be_asked_for() -> None:
    backend = make_backend("tvm?compat=1")
    assert backend.reference == "tvm?compat=1"
    assert make_backend("tvm").reference == "tvm"
    assert backend.settings == make_backend("tvm").settings, "the same kernels, so the same records"


@pytest.mark.parametrize(
    ("reference", "settings"),
    [
        ("tvm?depth=8&groups=0", ""),
        ("tensorrt?style=none&depth=2", "style=none"),
        ("cublas?style=any", "style=any"),
    ],
)
def test_what_a_backend_proposes_can_be_set(reference: str, settings: str) -> None:
    backend = make_backend(reference)
    assert (backend.reference, backend.settings) == (reference, settings)
    own = reference.partition("?")[0]
    assert make_backend(own).reference == own


@pytest.mark.parametrize(
    ("reference", "fault"),
    [("tvm?depth=0", "max_depth is 0"), ("tensorrt?style=some", "give one of none, tvm, any")],
)
def test_a_setting_that_proposes_nothing_is_refused(reference: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        make_backend(reference)


@pytest.mark.parametrize("reference", ["tvm?trials=many", "tvm?trials", "tvm?surprise=3"])
def test_an_unknown_setting_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match="setting"):
        make_backend(reference)


def test_a_backend_that_cannot_run_on_the_target_says_why() -> None:
    with pytest.raises(TunerError, match=r"blas.*cannot run.*CPU"):
        backends_for(["tvm", "blas"], GPU)


def test_a_name_given_twice_is_refused(target: Target) -> None:
    with pytest.raises(ValueError, match="twice"):
        backends_for(["tvm", "tvm"], target)


def test_a_backend_of_ones_own_needs_no_entry(target: Target) -> None:
    (backend,) = backends_for(["examples.own_backend:OwnBackend"], target)
    assert backend.name == "own"

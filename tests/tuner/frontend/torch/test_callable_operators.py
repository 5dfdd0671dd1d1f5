"""What a torch call may name: operators that compute tensors from tensors, and no other."""

import pytest

torch = pytest.importorskip("torch")

from tuner.runtime.callable_operators import callable_operator  # noqa: E402 - after the skip

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "name", ["histc.default", "cummax.default", "_fft_r2c.default", "hypot.default", "select.int"]
)
def test_what_computes_is_allowed(name: str) -> None:
    assert str(callable_operator(name)) == f"aten.{name}"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("relu_.default", "it writes what it is given"),
        ("add.out", "it writes what it is given"),
        ("as_strided.default", "it addresses memory by strides"),
        ("bernoulli.default", "it draws random numbers"),
        ("from_file.default", "it touches files"),
        ("ones.default", "it takes no tensor"),
        ("item.default", "it does not give a fixed number of tensors"),
        ("unsafe_split.Tensor", "it does not give a fixed number of tensors"),
        ("_assert_async.default", "it does not give a fixed number of tensors"),
        ("nothing.default", "is no operator of ATen"),
        ("histc", "is no operator of ATen"),
        ("histc.__class__", "is no operator of ATen"),
        ("__class__.__init__", "is no operator of ATen"),
        ("histc.default.__globals__", "is no operator of ATen"),
        ("os.system", "is no operator of ATen"),
    ],
)
def test_what_acts_or_is_none_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        callable_operator(name)

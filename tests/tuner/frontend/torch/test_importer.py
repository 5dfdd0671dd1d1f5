"""The importer: what is computed while importing, what is refused, and how refusals name their place."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")


from tuner.errors import UnsupportedOperatorError  # noqa: E402
from tuner.frontend.torch.program import import_module  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Apply(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def imported(function, *inputs):
    return import_module(Apply(function), inputs, "own")


def operators(model) -> list[str]:
    return [
        binding.value.op.name.removeprefix("relax.")
        for block in model.module["main"].body.blocks
        for binding in block.bindings
        if hasattr(binding.value, "op")
    ]


def test_what_depends_on_no_input_is_computed_while_importing() -> None:
    def masked(x):
        keep = torch.ones(4, 4, dtype=torch.bool).tril().cumsum(-1) > 0
        return torch.where(keep & torch.eye(4).logical_not(), x, torch.tensor(0.0))

    assert operators(imported(masked, torch.randn(4, 4))) == ["where"]


def test_what_is_made_like_an_input_depends_on_its_shape_alone() -> None:
    assert operators(imported(lambda x: x + torch.ones_like(x).cumsum(0), torch.randn(3, 2))) == ["add"]


def test_weights_are_not_computed_with() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(3))
            self.register_buffer("rates", torch.ones(3))
            self.register_buffer("places", torch.arange(3))

        def forward(self, x):
            return x * (self.scale * 2) * (self.rates + 1) * (self.places * 2)

    model = import_module(Scaled(), (torch.randn(2, 3),), "own")
    assert model.parameter_names == ("scale", "rates")
    assert sorted(operators(model)) == ["add", *["multiply"] * 4]


def test_inputs_without_axes_and_without_elements_are_taken(run_model) -> None:
    def joined(x, factor, past):
        return torch.cat([past, x * factor])

    inputs = torch.randn(2, 3), torch.tensor(2.0), torch.empty(0, 3)
    model = imported(joined, *inputs)
    (found,) = run_model(model, [x.numpy() for x in inputs], model.parameters)
    np.testing.assert_array_equal(found, joined(*inputs).numpy())


def test_results_without_elements_are_given(run_model) -> None:
    def empty(x, past):
        return x[:, :0] * 2, past.clone(), x.new_zeros(0, 4), past.sum(1)

    inputs = torch.randn(2, 3), torch.empty(1, 0, 3)
    model = imported(empty, *inputs)
    found = run_model(model, [x.numpy() for x in inputs], model.parameters)
    for array, expected in zip(found, empty(*inputs), strict=True):
        assert array.shape == tuple(expected.shape)
        np.testing.assert_array_equal(array, expected.numpy())


def test_a_view_and_what_it_views_are_two_inputs_of_fixed_shapes() -> None:
    x = torch.randn(2, 3)
    assert [each.shape for each in imported(lambda x, y: x + y, x[0], x).inputs] == [(3,), (2, 3)]


class Lost(torch.nn.Module):
    def forward(self, x):
        y = x + 1
        return y.nonzero()


def test_an_operator_without_a_converter_is_named_with_its_line() -> None:
    with pytest.raises(
        UnsupportedOperatorError,
        match=r"own cannot be imported: operator nonzero\.default \(`return y\.nonzero\(\)` at "
        r".*test_importer\.py:\d+\) is the first .*; write that line in other operators$",
    ):
        import_module(Lost(), (torch.randn(3),), "own")


def test_an_operator_of_another_library_is_not_taken_for_one_of_the_same_name() -> None:
    with torch.library._scoped_library("own_operators", "FRAGMENT") as library:
        library.define("relu(Tensor self) -> Tensor")
        library.impl("relu", lambda x: x * 3, "CompositeExplicitAutograd")
        library._register_fake("relu", torch.empty_like)
        with pytest.raises(
            UnsupportedOperatorError,
            match=r"operator own_operators::relu\.default .*only operators of ATen can stay calls of torch",
        ):
            imported(lambda x: torch.ops.own_operators.relu(x), torch.randn(3))


def test_what_only_an_assertion_reads_is_left_out() -> None:
    def checked(x):
        torch._assert_async((x > 0).all())
        return x + 1

    assert operators(imported(checked, torch.ones(3))) == ["add"]


def test_control_flow_is_refused() -> None:
    def branches(x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    with pytest.raises(UnsupportedOperatorError, match=r"own (holds a sub-graph|cannot be imported)"):
        imported(branches, torch.randn(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_steps_between_numbers_are_those_that_torch_computes(dtype) -> None:
    """Taken apart by torch's rule, some of them round otherwise."""
    expected = torch.linspace(0.5, 1.5, 36, dtype=dtype)
    model = imported(lambda x: x + torch.linspace(0.5, 1.5, 36, dtype=dtype), torch.zeros(36, dtype=dtype))
    (constant,) = [
        each
        for block in model.module["main"].body.blocks
        for binding in block.bindings
        for each in getattr(binding.value, "args", ())
        if hasattr(each, "value")
    ]
    assert constant.value.numpy().astype("float32").tolist() == expected.float().tolist()


def test_sparse_tensors_are_refused_before_torch_ends_the_process() -> None:
    class Sparse(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.eye(3).to_sparse_csr())

        def forward(self, x):
            return torch.sparse.mm(self.weight, x)

    with pytest.raises(UnsupportedOperatorError, match=r"weight of own is a sparse tensor .*to_dense"):
        import_module(Sparse(), (torch.rand(3, 3),), "own")

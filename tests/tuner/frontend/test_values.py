"""Values drawn for parameters and inputs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.frontend import load_model, random_inputs, random_parameter, random_parameters

SHAPES = st.lists(st.integers(1, 9), max_size=4).map(tuple)
NAMES = st.sampled_from(["a.weight", "a.bias", "b.running_var", "b.running_mean", "table"])


@given(name=NAMES, shape=SHAPES, seed=st.integers(0, 9), dtype=st.sampled_from(["float32", "float16"]))
@settings(max_examples=50)
def test_value_has_its_shape_and_type_and_depends_on_the_seed_alone(
    name: str, shape: tuple[int, ...], seed: int, dtype: str
) -> None:
    value = random_parameter(name, shape, dtype, seed)
    assert value.shape == shape
    assert value.dtype == dtype
    assert np.isfinite(value).all()
    assert np.array_equal(value, random_parameter(name, shape, dtype, seed))
    if name.endswith("running_var"):
        assert value.min() > 0


def test_two_parameters_of_one_shape_get_different_values() -> None:
    first, second = (random_parameter(f"h.{index}.weight", (4, 4), "float32", 0) for index in range(2))
    assert not np.array_equal(first, second)


@pytest.mark.tvm
def test_parameters_come_in_the_order_of_the_function() -> None:
    model = load_model("gpt2:tiny")
    values = random_parameters(model, 0)
    variables = model.module["main"].params[len(model.inputs) :]
    assert tuple(values) == model.parameter_names
    assert [value.shape for value in values.values()] == [
        tuple(int(extent) for extent in variable.ty.shape) for variable in variables
    ]


@pytest.mark.tvm
def test_integers_stay_below_what_makes_sense() -> None:
    model = load_model("bert:tiny", batch=64, training=True)
    values = dict(zip([spec.name for spec in model.inputs], random_inputs(model, 0), strict=True))
    assert values["token_type_ids"].max() == 1
    assert values["labels"].min() >= 0
    assert values["labels"].max() < 512
    assert all(value.dtype == np.int64 for value in values.values())

"""Names of models, good and bad."""

import pytest

from tuner.errors import UnknownNameError
from tuner.frontend import MODELS, load_model

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize("name", sorted(MODELS))
def test_model_without_a_size_is_its_default_size(name: str) -> None:
    assert MODELS[name].default_size in MODELS[name].sizes
    assert "tiny" in MODELS[name].sizes


def test_unknown_model_is_answered_with_a_near_name_and_the_list() -> None:
    with pytest.raises(UnknownNameError, match=r"'gtp2'.*did you mean 'gpt2'.*bert.*mlp"):
        load_model("gtp2")


def test_unknown_size_is_answered_with_the_sizes() -> None:
    with pytest.raises(UnknownNameError, match=r"'smal'.*did you mean 'small'.*tiny, small, medium"):
        load_model("gpt2:smal")


def test_same_specification_gives_the_same_model() -> None:
    first, second = load_model("gpt2:tiny"), load_model("gpt2:tiny")
    assert first.module.script() == second.module.script()
    assert first.module_paths == second.module_paths


def test_batch_and_shape_reach_the_inputs() -> None:
    assert load_model("mlp:tiny", batch=7).inputs[0].shape == (7, 32)
    assert load_model("gpt2:tiny", shapes={"input_ids": (3, 9)}).inputs[0].shape == (3, 9)


@pytest.mark.parametrize("batch", [0, -2])
def test_batch_below_one_is_refused(batch: int) -> None:
    with pytest.raises(ValueError, match="at least one example"):
        load_model("mlp:tiny", batch=batch)


@pytest.mark.parametrize("name", ["gpt2:tiny", "bert:tiny"])
def test_sequence_longer_than_the_positions_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="129 positions"):
        load_model(name, shapes={"input_ids": (1, 129)})


def test_width_of_the_perceptron_cannot_be_chosen() -> None:
    with pytest.raises(ValueError, match="33 features"):
        load_model("mlp:tiny", shapes={"x": (1, 33)})

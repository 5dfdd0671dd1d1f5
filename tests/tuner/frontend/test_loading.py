"""Names of models, good and bad."""

import sys

import pytest

from tuner.errors import TunerError, UnknownNameError
from tuner.frontend import MODELS, load_model

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize("name", sorted(MODELS))
def test_model_without_a_size_is_its_default_size(name: str) -> None:
    assert MODELS[name].DEFAULT_SIZE in MODELS[name].SIZES
    assert "tiny" in MODELS[name].SIZES


def test_the_colon_before_a_size_may_be_left_out() -> None:
    assert load_model("mlptiny").name == load_model("mlp:tiny").name
    assert load_model("resnet50").name == "resnet:50"


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


@pytest.mark.parametrize(
    ("spec", "extra", "importer"),
    [("model.onnx", "onnx", "onnx.file"), ("model.pt2", "torch", "torch.program")],
)
def test_missing_extra_is_named_with_how_to_install_it(
    spec: str, extra: str, importer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, extra, None)  # what makes its import fail
    for module in (importer, "onnx.graph", "torch.importer"):
        monkeypatch.delitem(sys.modules, f"tuner.frontend.{module}", raising=False)
    with pytest.raises(TunerError, match=rf"'{extra}', which is not installed.*tessel-tuner\[{extra}\]"):
        load_model(spec)


@pytest.mark.parametrize("spec", ["", ":", "gpt2 :tiny", "model.txt", "9:9", "a b:c"])
def test_text_that_names_nothing_is_answered_with_what_there_is(spec: str) -> None:
    with pytest.raises(UnknownNameError, match=r"no model .*gpt2.*a file \.onnx or \.pt2"):
        load_model(spec)


@pytest.mark.parametrize("name", ["gpt2:tiny", "bert:tiny"])
def test_sequence_longer_than_the_positions_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="129 positions"):
        load_model(name, shapes={"input_ids": (1, 129)})


def test_width_of_the_perceptron_cannot_be_chosen() -> None:
    with pytest.raises(ValueError, match="33 features"):
        load_model("mlp:tiny", shapes={"x": (1, 33)})

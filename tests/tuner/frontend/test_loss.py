"""The loss that a model without one gets."""

import numpy as np
import pytest
from tvm import relax
from tvm.relax.frontend import nn

from tuner.frontend import InputSpec, load_model, random_inputs, random_parameters
from tuner.frontend.emission import Layer, emit, emit_model
from tuner.frontend.layers import Linear
from tuner.frontend.loss import with_loss

pytestmark = pytest.mark.tvm


def test_loss_on_logits_is_the_loss_the_zoo_computes(run_model, assert_close) -> None:
    model = with_loss(load_model("gpt2:tiny"))
    own = load_model("gpt2:tiny", training=True)
    parameters, inputs = random_parameters(own, 0), random_inputs(own, 0)
    assert model.inputs == own.inputs
    assert model.module_paths == own.module_paths
    assert model.tied == own.tied
    assert_close(run_model(model, inputs, parameters)[0], run_model(own, inputs, parameters)[0])


def test_model_that_returns_its_loss_is_trained_as_it_is() -> None:
    model = load_model("mlp:tiny", training=True)
    assert with_loss(model).module.script() == model.module.script()


class Plain(Layer):
    def __init__(self, result: str) -> None:
        self.result = result

    def forward(self, x: nn.Tensor, labels: nn.Tensor) -> nn.Tensor:
        match self.result:
            case "vector":
                return nn.op.reshape(x, (12,))
            case "integers":
                return nn.op.astype(x, "int64")
        return nn.op.add(x, labels)


def plain(result: str):
    inputs = [InputSpec(name=name, shape=(3, 4), dtype="float32") for name in ("x", "labels")]
    return emit_model("plain", Plain(result), inputs, training=False)


@pytest.mark.parametrize("result", ["vector", "integers"])
def test_model_without_classes_to_choose_from_is_refused(result: str) -> None:
    with pytest.raises(ValueError, match="neither a loss nor one tensor of logits"):
        with_loss(plain(result))


def test_layers_of_the_model_keep_their_paths_below_the_loss() -> None:
    class Named(Layer):
        def __init__(self) -> None:
            self.layer = Linear(4, 4)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            flat = nn.op.reshape(self.layer(x), (12,), name="lv")
            return nn.op.reshape(flat, (3, 4), name="logits")

    spec = InputSpec(name="x", shape=(3, 4), dtype="float32")
    model = with_loss(emit_model("named", Named(), [spec], training=False))
    assert model.module_paths == ("layer", "layer", "", "", *["loss"] * 4)


def test_model_without_layers_gets_none_for_its_loss() -> None:
    assert set(with_loss(plain("sum")).module_paths) == {""}


def test_labels_do_not_take_the_name_of_an_input() -> None:
    model = with_loss(plain("sum"))
    assert [spec.name for spec in model.inputs] == ["x", "labels", "loss_labels"]
    assert model.inputs[-1].shape == (3,)
    assert model.inputs[-1].high == 4
    relax.analysis.well_formed(model.module)


def test_loss_of_equal_logits_is_the_logarithm_of_the_number_of_classes(run_model) -> None:
    class Zero(Layer):
        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return emit(relax.op.multiply(x._expr, relax.const(0.0, "float32")), "zero")

    spec = InputSpec(name="x", shape=(5, 8), dtype="float32")
    model = with_loss(emit_model("zero", Zero(), [spec], training=False))
    (loss,) = run_model(model, random_inputs(model, 0), {})
    assert loss == pytest.approx(np.log(8), rel=1e-5)

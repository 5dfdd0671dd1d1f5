"""What holds for every model of the zoo, and where paths of layers come from."""

import pytest
from tvm import relax
from tvm.relax.frontend import nn

from tuner.frontend import MODELS, InputSpec, load_model
from tuner.frontend.emission import Layer, emit_model
from tuner.frontend.layers import Linear

pytestmark = pytest.mark.tvm

X = InputSpec(name="x", shape=(2, 4), dtype="float32")


class Twice(Layer):
    def __init__(self) -> None:
        self.first = Linear(4, 4)
        self.second = Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return nn.op.relu(self.second(self.first(x)))


def test_each_binding_is_noted_under_its_innermost_layer() -> None:
    model = emit_model("twice", Twice(), [X], training=False)
    assert model.module_paths == ("first", "first", "second", "")


def test_shared_parameter_becomes_one_parameter_under_its_first_name() -> None:
    model = emit_model("twice", Twice(), [X], training=False)
    assert model.parameter_names == ("first.weight", "first.bias")
    assert model.tied == (("first.weight", "second.weight"),)


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("training", [False, True])
def test_zoo_model_keeps_the_contract(name: str, training: bool) -> None:
    model = load_model(f"{name}:tiny", training=training)
    function = model.module["main"]
    (block,) = function.body.blocks
    relax.analysis.well_formed(model.module)
    assert isinstance(block, relax.DataflowBlock)
    assert len(model.module_paths) == len(block.bindings)
    assert not any(isinstance(binding.value, relax.Var) for binding in block.bindings)
    assert [v.name for v in function.params] == [spec.name for spec in model.inputs] + list(
        model.parameter_names
    )
    assert len(set(model.parameter_names)) == len(model.parameter_names)
    assert model.training == training
    if training:
        assert len(function.ret_ty.shape) == 0


@pytest.mark.parametrize("name", sorted(MODELS))
def test_zoo_models_hold_operators_and_not_lowered_kernels(name: str) -> None:
    model = load_model(f"{name}:tiny")
    assert len(model.module.functions) == 1

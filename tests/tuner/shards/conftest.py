"""Sharded stages beside the whole: in torch, or built by TVM."""

import pytest
import tvm
from run_module import plain_machine
from tvm import relax

from tuner.frontend.model import InputSpec, Model
from tuner.shards.layouts import Replicated, join_shards, take_shard
from tuner.shards.run import run_shards

LOSS = "loss"


def write_model(build, *, inputs, parameters, dtype="float64", training=True):
    """Write a training model of float parameters whose loss is `build(*inputs, *parameters)`."""
    arguments = [relax.Var(spec.name, relax.TensorType(spec.shape, spec.dtype)) for spec in inputs]
    weights = [relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in parameters.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", [*arguments, *weights]):
        with builder.dataflow():
            loss = builder.emit_output(build(*arguments, *weights), name_hint=LOSS)
        builder.emit_func_output(loss)
    module = builder.get()
    return Model(
        name="written for shards",
        module=module,
        inputs=tuple(inputs),
        parameter_names=tuple(parameters),
        module_paths=("",) * len(module["main"].body.blocks[0].bindings),
        training=training,
    )


def weighted_sum_model(function, shapes, dtype="float64", *, training=True):
    """Write the loss `sum(weights * function(parameters))`: every output element counts differently."""
    arguments = [relax.Var(f"p{at}", relax.TensorType(shape, dtype)) for at, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", arguments):
        builder.emit_func_output(builder.emit(function(*arguments)))
    result = builder.get()["main"].ret_ty
    shape = tuple(int(extent) for extent in result.shape)
    return write_model(
        lambda weights, *values: relax.op.sum(relax.op.multiply(weights, function(*values))),
        inputs=[InputSpec(name="w", shape=shape, dtype=dtype)],
        parameters={f"p{at}": shape for at, shape in enumerate(shapes)},
        dtype=dtype,
        training=training,
    )


def run_both(stage, tensors, run, *, split=False):
    """Run a sharded stage's forward and backward; return whole outputs, and what each shard has."""
    own = [
        {
            name: take_shard(value, stage.layouts.get(name, Replicated()), rank)
            for name, value in tensors.items()
        }
        for rank in range(stage.forward.num_shards)
    ]
    halves = (stage.backward_input, stage.backward_weight) if split else (stage.backward,)
    whole = {}
    for function in (stage.forward, *halves):
        if function is None:
            continue
        for known, made in zip(own, run_shards(function, own, run), strict=True):
            known.update(made)
        whole |= {
            info.name: join_shards([known[info.name] for known in own], function.layouts[info.name])
            for info in function.outputs
        }
    return whole, own


@pytest.fixture(scope="session")
def run_sharded():
    return run_both


@pytest.fixture(scope="session")
def weighted():
    return weighted_sum_model


@pytest.fixture(scope="session")
def trained():
    return write_model


@pytest.fixture(scope="session")
def run():
    """Build a module with TVM's default pipeline, and run its `main` once."""

    def call(module, arrays):
        machine = plain_machine(module)
        return [output.numpy() for output in machine["main"](*map(tvm.runtime.tensor, arrays))]

    return call

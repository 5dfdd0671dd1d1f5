import pytest
from tvm import relax

from tuner.graph.structure import Structure

pytestmark = pytest.mark.tvm


def doubled(name: str, extent: int):
    value = relax.Var(name, relax.TensorType((extent,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [value]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.add(value, value))
        builder.emit_func_output(result)
    return builder.get()["main"]


def test_names_do_not_matter_and_shapes_do() -> None:
    known = {Structure(doubled("x", 4)): "four"}
    assert known[Structure(doubled("y", 4))] == "four"
    assert Structure(doubled("x", 5)) not in known

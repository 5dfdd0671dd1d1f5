"""Torch calls are run by the backend `torch` alone, and name nothing but operators that compute."""

import importlib.util
import math

import numpy as np
import pytest
import tvm
from tvm import relax

torch = pytest.importorskip("torch")

from tuner.backends.protocol import refusal_of  # noqa: E402 - after the skip
from tuner.backends.registry import backend_names, make_backend  # noqa: E402
from tuner.errors import TunerError  # noqa: E402
from tuner.graph.dataflow import DataflowGraph  # noqa: E402
from tuner.graph.torch_call import (  # noqa: E402
    write_torch_call,
)
from tuner.lowering.backend_specs import gather_specs  # noqa: E402
from tuner.lowering.lower import build_module, build_unscheduled, lower_module  # noqa: E402
from tuner.lowering.outline import extract_function, outline_partitions  # noqa: E402
from tuner.partition.candidate import FREE  # noqa: E402
from tuner.partition.find_partition import find_candidates  # noqa: E402
from tuner.runtime.operator_call import (  # noqa: E402
    OperatorCall,
    encode_number,
    encode_operator_call,
)
from tuner.runtime.torch_operator_calls import compute, run_gradient, run_operator  # noqa: E402
from tuner.targets.resolution import resolve_target  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

SORTED = OperatorCall(operator="cummax.default", arguments=({"tensor": 0}, 1), results=(0, 1))


def module_of(call: OperatorCall = SORTED):
    """Return relu, then a torch call of two results, then their sum."""
    x = relax.Var("x", relax.TensorType([2, 3], "float32"))
    types = [relax.TensorType([2, 3], "float32"), relax.TensorType([2, 3], "int64")]
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            positive = builder.emit(relax.op.nn.relu(x))
            made = builder.emit(write_torch_call(call, [positive], types))
            values, places = (builder.emit(relax.TupleGetItem(made, index)) for index in range(2))
            total = relax.op.add(values, relax.op.astype(places, "float32"))
            result = builder.emit_output(builder.emit(total))
        builder.emit_func_output(result)
    return builder.get()


def results(executable, *arrays) -> np.ndarray:
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*[tvm.runtime.tensor(array) for array in arrays]).numpy()


@pytest.fixture(scope="module")
def target():
    return resolve_target("cpu", num_threads=1)


def test_the_backend_torch_runs_a_call_as_a_candidate_of_its_own(target) -> None:
    backends = [make_backend("tvm"), make_backend("torch")]
    graph = DataflowGraph.from_function(module_of())
    found = find_candidates(graph, gather_specs(backends, target))
    (call,) = [each for each in found.candidates if each.sub_graph.label == "torch call"]
    assert call.backend == "torch"
    assert graph.operators_of(call.sub_graph.inside) == ("torch call aten.cummax",)
    holding = [each for each in found.candidates if call.sub_graph.inside & each.sub_graph.inside]
    assert holding == [call]
    rest = [
        next(
            each
            for each in found.candidates
            if each.backend == "tvm" and list(each.sub_graph.inside) == [index]
        )
        for index in graph.all_indices - call.sub_graph.inside
    ]
    x = np.array([[1, -2, 3], [0, 5, -6]], "float32")
    executable = build_module(
        lower_module(outline_partitions(graph, [call, *rest]), backends, target), target
    )
    reference = build_unscheduled(module_of(), target)
    values, places = torch.cummax(torch.from_numpy(x).relu(), 1)
    for program in (executable, reference):
        np.testing.assert_array_equal(results(program, x), (values + places).numpy())


def test_every_other_backend_refuses_it(target) -> None:
    graph = DataflowGraph.from_function(module_of())
    for name in backend_names():
        backend = make_backend(name)
        for spec in gather_specs([backend], target)[:1]:
            candidates = find_candidates(graph, [spec]).candidates
            assert name == "torch" or all(1 not in each.sub_graph.inside for each in candidates)
        alone = extract_function(graph, next(iter(_alone(graph, target))), name)
        assert (refusal_of(backend, alone, target) is None) == (name == "torch")
    assert FREE not in backend_names()


def _alone(graph, target):
    return (
        each.sub_graph
        for each in find_candidates(graph, gather_specs([make_backend("torch")], target)).candidates
        if each.sub_graph.label == "torch call"
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (OperatorCall(operator="relu_.default", arguments=({"tensor": 0},)), "it writes what it is given"),
        (OperatorCall(operator="from_file.default", arguments=("/etc/hostname",)), "it touches files"),
        (
            OperatorCall(operator="histc.default", arguments=({"tensor": 0}, 9)),
            "the program was imported for",
        ),
        (OperatorCall(operator="histc.default", arguments=({"module": "os"}, 3)), "stands for nothing"),
        (OperatorCall(operator="histc.default", arguments=({"dtype": "nn"}, 3)), "stands for nothing"),
        (OperatorCall(operator="histc.default", arguments=({"tensor": 7}, 3)), "."),
    ],
)
def test_texts_that_name_anything_else_are_refused(call: OperatorCall, message: str) -> None:
    operands = [tvm.runtime.tensor(np.ones(3, "float32")) for _ in range(2)]
    with pytest.raises(ValueError, match=message):
        run_operator(encode_operator_call(call), *operands)
    with pytest.raises(RuntimeError, match="unknown field"):  # what TVM makes of msgspec's error
        run_gradient(encode_operator_call(call), *operands)


def test_arguments_stand_for_what_json_lacks() -> None:
    one = torch.ones(1)
    for argument, expected in (
        (encode_number(-math.inf), one * -math.inf),
        (encode_number(2 + 1j), torch.tensor([[2.0, 1.0]])),
    ):
        is_complex = (0,) if expected.ndim == 2 else ()
        call = OperatorCall(
            operator="mul.Scalar", arguments=({"tensor": 0}, argument), complex_results=is_complex
        )
        (found,) = compute(call, [one])
        assert found.equal(expected)


def test_a_program_that_needs_torch_says_so_where_it_is_missing(target, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TunerError, match=r"a torch call aten\.cummax, and torch is not installed here; "):
        build_unscheduled(module_of(), target)

"""The comparison of an import with the user's own module: faults are caught and named, no model alarms."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
import tvm_ffi
from run_module import plain_machine
from tvm import relax

torch = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import flex_attention  # noqa: E402

from records import Environment, open_store  # noqa: E402
from tests.samples.programs.imported_models import MODELS, NOT_TRAINED  # noqa: E402 - after the skip
from tuner.backends.torch.operators import provide_torch_calls  # noqa: E402
from tuner.errors import TunerError, UnsupportedOperatorError  # noqa: E402
from tuner.frontend.converters import CONVERTERS  # noqa: E402
from tuner.frontend.loading import for_training, with_torch_calls  # noqa: E402
from tuner.frontend.torch.program import import_module  # noqa: E402
from tuner.graph.legalization import legalize_operators  # noqa: E402
from tuner.graph.torch_call import torch_calls_in  # noqa: E402
from tuner.numerical_error import TOLERANCES  # noqa: E402
from tuner.stages import (  # noqa: E402
    build_stages,
    check_gradients,
    cut_between,
    layers_of,
    with_all_gradients,
)
from tuner.tuning.import_check import check_import, verify_import  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Machine:
    """Compiles once and runs in this process; what a run gives can be spoilt."""

    def __init__(self) -> None:
        self._compiled: dict[int, tuple[object, object]] = {}
        self.spoil = sound

    def __call__(self, module, arrays):
        if id(module) not in self._compiled:
            provide_torch_calls(module)
            self._compiled[id(module)] = module, plain_machine(legalize_operators()(module))
        result = self._compiled[id(module)][1]["main"](*[tvm.runtime.tensor(np.array(a)) for a in arrays])
        results = [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]
        return self.spoil(module, results)


def sound(module, results):
    return results


def built(name: str, *, training: bool = False):
    torch.manual_seed(0)
    model = import_module(*MODELS[name](), name)
    return for_training(model) if training else model


QUICK = ("last_token", "tied_weights", "gathered", "logarithms", "several_outputs")


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine()


@pytest.fixture
def session(tmp_path, machine: Machine):
    """What the check needs of a session: records, and somebody who runs modules."""
    here = Environment(
        device_kind="cpu", device_model="d", num_cores=1, num_threads=1, driver="", versions=()
    )
    machine.spoil = sound
    with open_store(f"sqlite:///{tmp_path}/records.db") as store:

        def find(workload, backend, *, settings=""):
            return store.find_latest(
                workload.fingerprint, backend=backend, settings=settings, target="cpu", environment=here
            )

        yield SimpleNamespace(
            store=store,
            measurer=SimpleNamespace(
                run=machine,
                find=find,
                environment=lambda backend: here,
                new_measurements=0,
                claimed=lambda what: nullcontext(),
            ),
            target=SimpleNamespace(text="cpu"),
            seed=0,
            on_progress=lambda progress: None,
        )


def slow_unless(quick, names):
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", slow_unless(QUICK, MODELS))
def test_no_model_gives_a_false_alarm(name: str, session) -> None:
    error = check_import(built(name), session)
    assert error is not None
    assert error < (1e-2 if name == "half" else 1e-5)


@pytest.mark.parametrize("name", slow_unless(("last_token",), sorted(MODELS.keys() - NOT_TRAINED)))
def test_no_gradient_gives_a_false_alarm(name: str, machine: Machine) -> None:
    machine.spoil = sound
    model = with_all_gradients(built(name, training=True))
    layers = layers_of(model)
    stages = build_stages(model, cut_between(layers, [1]) if len(layers) > 1 else ())
    found = check_gradients(model, stages, seed=0, run=machine)
    # Softmax cancels a key's bias, and the statistics of a batch the bias before them: their gradients are
    # rounding errors, in which processors differ.
    strict = TOLERANCES["float32"] if name in ("masked_attention", "batch_norm") else 1e-5
    assert found.is_within(strict), f"{found.tensor} {found.describe(strict)}"


@pytest.fixture(scope="module")
def several():
    return built("several_outputs")


def last(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array.reshape(-1)[-1] = value
    return array


OUTPUT_FAULTS = {
    "scaled": (lambda x: [x[0] * 1.01, *x[1:]], "output 0 is off by"),
    "shifted": (lambda x: [x[0] + 1, *x[1:]], "output 0 is off by"),
    "negated": (lambda x: [x[0], -x[1], x[2]], "output 1 is off by"),
    "zeros": (lambda x: [x[0], x[1] * 0, x[2]], "output 1 is off by 1.0e+00"),
    "not a number": (lambda x: [x[0] * np.nan, *x[1:]], "output 0 is NaN in 15 of 15 values"),
    "one not a number": (lambda x: [last(x[0], np.nan), *x[1:]], "output 0 is NaN in 1 of 15 values"),
    "infinite": (lambda x: [last(x[0], np.inf), *x[1:]], "output 0 is infinity in"),
    "one element": (lambda x: [last(x[0], 9.0), *x[1:]], "output 0 is off by"),
    "swapped": (lambda x: [x[1], x[0], x[2]], "output 0 has the shape"),
    "rows swapped": (lambda x: [x[0][::-1], *x[1:]], "output 0 is off by"),
    "missing": (lambda x: x[:2], "output 2 is missing"),
    "one too many": (lambda x: [*x, x[0]], "output 3 was made, but the reference has none"),
    "wrong type": (
        lambda x: [x[0], x[1], x[2].astype("int32")],
        "output 2 is of type int32 in place of int64",
    ),
    "coarse": (lambda x: [x[0].astype("float16").astype("float64"), *x[1:]], "output 0 is of type float64"),
    "wrong shape": (lambda x: [x[0][:, :4], *x[1:]], "output 0 has the shape"),
    "wrong index": (lambda x: [x[0], x[1], (x[2] + 1) % 5], "output 2 is off by"),
}


@pytest.mark.parametrize(
    "fault",
    slow_unless(("scaled", "one not a number", "swapped", "missing", "wrong type"), sorted(OUTPUT_FAULTS)),
)
def test_a_wrong_output_is_caught_and_named(fault: str, several, machine: Machine, session) -> None:
    change, message = OUTPUT_FAULTS[fault]
    machine.spoil = lambda module, results: change(results) if module is several.module else results
    with pytest.raises(TunerError, match="several_outputs is imported wrongly") as caught:
        check_import(several, session)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def scaled(call):
    return call.emit(relax.op.multiply(SOUND["embedding.default"](call), relax.const(1.1, "float32")))


def neighbour(call):
    return call.emit(relax.op.take(call["self"], relax.const(np.array(0, "int64")), axis=1, mode="clip"))


def no_number(call):
    return call.emit(
        relax.op.log(call.emit(relax.op.negative(call.emit(relax.op.abs(SOUND["linear.default"](call))))))
    )


def flattened(call):
    return call.emit(relax.op.reshape(SOUND["linear.default"](call), (10,)))


def whole(call):
    return call.emit(relax.op.astype(SOUND["linear.default"](call), "int32"))


SOUND = dict(CONVERTERS)
OPERATOR_FAULTS = {
    "embedding.default": (
        scaled,
        r"embedding\.default \(.*imported_models\.py:\d+, layer embed\), which is off by",
    ),
    "select.int": (neighbour, r"select\.int \(`return .*` at .*imported_models\.py:\d+\), which is off by"),
    "linear.default": (no_number, r"linear\.default \(.*layer head\), which is NaN in"),
}


@pytest.mark.slow  # it becomes a call below
@pytest.mark.parametrize("operator", sorted(OPERATOR_FAULTS))
def test_an_operator_that_is_imported_wrongly_is_named(operator: str, session, monkeypatch) -> None:
    converter, message = OPERATOR_FAULTS[operator]
    monkeypatch.setitem(CONVERTERS, operator, converter)
    with pytest.raises(
        TunerError,
        match=f"last_token is imported wrongly.*{message}.* is the first that differs; write that line",
    ):
        check_import(built("last_token"), session)


@pytest.mark.parametrize("training", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("operator", sorted(OPERATOR_FAULTS))
def test_an_operator_that_is_imported_wrongly_becomes_a_call_of_torch(
    operator: str, training: bool, session, monkeypatch
) -> None:
    monkeypatch.setitem(CONVERTERS, operator, OPERATOR_FAULTS[operator][0])
    wrong = built("last_token", training=training)
    assert not list(torch_calls_in(wrong.module["main"]))
    model, error = verify_import(wrong, session)
    assert error is not None
    assert error < 1e-5
    calls = {call.name for call in torch_calls_in(model.module["main"])}
    assert calls == {f"torch call aten.{operator.removesuffix('.default')}"}
    assert [each.partition("_")[0] for each in model.called] == [operator.partition(".")[0]]
    assert model.training is training
    assert [spec.name for spec in model.inputs] == [spec.name for spec in wrong.inputs]
    assert f"operator {operator}" in model.notes[-1]
    assert "stays a call of torch" in model.notes[-1]


def test_several_wrong_operators_become_calls_one_after_the_other(session, monkeypatch) -> None:
    for operator, (converter, _) in OPERATOR_FAULTS.items():
        monkeypatch.setitem(CONVERTERS, operator, converter)
    model, error = verify_import(built("last_token"), session)
    assert error is not None
    assert error < 1e-5
    assert len(model.called) == len(OPERATOR_FAULTS)
    again = with_torch_calls(built("last_token"), model.called)  # as the ranks of a plan load it
    assert tvm_ffi.structural_equal(again.module, model.module)


def test_what_no_operator_explains_is_refused(several, session) -> None:
    weight = several.parameters["l.weight"]
    stale = replace(several, parameters={**several.parameters, "l.weight": weight * 0.99})
    with pytest.raises(TunerError, match="output 1 is off by"):
        verify_import(stale, session)


def test_the_users_own_inputs_are_compared_as_well(session, monkeypatch) -> None:
    """A fault that drawn inputs, which are small, do not show."""

    class Growth(torch.nn.Module):
        def forward(self, x):
            return x.exp()

    def bounded(call):
        return call.emit(relax.op.minimum(SOUND["exp.default"](call), relax.const(1e3, "float32")))

    monkeypatch.setitem(CONVERTERS, "exp.default", bounded)
    with pytest.raises(
        TunerError, match=r"the output is off by.*operator exp\.default \(`return x\.exp\(\)`"
    ):
        check_import(import_module(Growth(), (torch.full((3,), 10.0),), "growth"), session)
    assert check_import(import_module(Growth(), (torch.full((3,), 1.0),), "growth"), session) < 1e-6


@pytest.mark.parametrize("converter", [flattened, whole])
def test_a_wrong_type_or_shape_gives_way_to_a_call_of_torch(converter, session, monkeypatch) -> None:
    monkeypatch.setitem(CONVERTERS, "linear.default", converter)
    model = built("last_token")
    assert [call.name for call in torch_calls_in(model.module["main"])] == ["torch call aten.linear"]
    error = check_import(model, session)
    assert error is not None
    assert error < 1e-5


def test_weights_that_changed_since_the_import_are_caught(several, session) -> None:
    weight = several.parameters["l.weight"]
    stale = replace(several, parameters={**several.parameters, "l.weight": weight * 0.99})
    with pytest.raises(TunerError, match="output 1 is off by"):
        check_import(stale, session)


def test_random_numbers_are_refused() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(6, 8))
    module.forward = lambda x: torch.nn.functional.alpha_dropout(x, 0.5, training=True)
    with pytest.raises(UnsupportedOperatorError, match="it draws random numbers"):
        import_module(module, (torch.randn(3, 6),), "noise")


def test_a_comparison_is_made_once_and_a_failed_one_again(several, session, machine: Machine) -> None:
    error = check_import(several, session)
    machine.spoil = lambda module, results: pytest.fail("it was compared again")
    assert check_import(several, session) == error
    (record,) = list(session.store.iterate())
    assert record.measurement.settings.startswith(
        "reference=torch-reference;mode=eval;seed=0;calls=2;program="
    )
    other = replace(several, parameters={**several.parameters, "l.bias": several.parameters["l.bias"] + 1})
    machine.spoil = sound
    for _ in range(2):
        with pytest.raises(TunerError, match="output 1 is off by"):
            check_import(other, session)
    errors = [each.measurement.relative_error or 0.0 for each in session.store.iterate()]
    assert sum(error > 1e-3 for error in errors) == 2


@pytest.fixture(scope="module")
def tied():
    model = built("tied_weights", training=True)
    stages = build_stages(model, cut_between(layers_of(model), [1]))
    assert len(stages) == 2
    return model, stages


STAGE_FAULTS = {
    "forward scaled": (0, "forward", lambda x: [x[0] * 1.1, *x[1:]], "grad"),
    "forward not a number": (0, "forward", lambda x: [last(x[0], np.nan), *x[1:]], "NaN"),
    "loss scaled": (1, "forward", lambda x: [x[0] * 1.1, *x[1:]], "output gv"),
    "loss not a number": (1, "forward", lambda x: [x[0] * np.nan, *x[1:]], "NaN"),
    "joint scaled": (1, "backward", lambda x: [*x[:-1], x[-1] * 1.1], "the joint backward) is off by"),
    "joint swapped": (0, "backward", lambda x: [x[-1][::-1], *x[1:]], "the gradient of"),
    "joint negated": (
        1,
        "backward",
        lambda x: [x[0], *(-each for each in x[1:])],
        "the joint backward) is off by",
    ),
    "joint not a number": (1, "backward", lambda x: [each * np.nan for each in x], "is NaN in"),
    "joint one not a number": (0, "backward", lambda x: [last(x[0], np.nan), *x[1:]], "is NaN in"),
    "joint infinite": (1, "backward", lambda x: [*x[:-1], last(x[-1], np.inf)], "is infinity in"),
    "joint zeros": (0, "backward", lambda x: [each * 0 for each in x], "the joint backward) is off by"),
    "input half scaled": (1, "backward_input", lambda x: [x[0] * 2, *x[1:]], "the split backward)"),
    "input half not a number": (1, "backward_input", lambda x: [x[0] * np.nan, *x[1:]], "is NaN in"),
    "weight half scaled": (
        1,
        "backward_weight",
        lambda x: [x[0] * 1.1, *x[1:]],
        "the split backward) is off by",
    ),
    "weight half zeros": (
        1,
        "backward_weight",
        lambda x: [each * 0 for each in x],
        "the split backward) is off by",
    ),
    "weight half not a number": (1, "backward_weight", lambda x: [each * np.nan for each in x], "is NaN in"),
}


@pytest.mark.parametrize(
    "fault",
    slow_unless(
        ("forward not a number", "joint swapped", "input half scaled", "weight half zeros"),
        sorted(STAGE_FAULTS),
    ),
)
def test_a_wrong_stage_is_caught_and_named(fault: str, tied, machine: Machine) -> None:
    model, stages = tied
    number, function, change, message = STAGE_FAULTS[fault]
    broken = getattr(stages[number], function).module
    machine.spoil = lambda module, results: change(results) if module is broken else results
    difference = check_gradients(model, stages, seed=0, run=machine)
    assert not difference.is_within(1e-3)
    assert message in f"{difference.tensor} {difference.describe(1e-3)}"


def test_gradients_that_nobody_sums_or_makes_are_caught(tied, machine: Machine) -> None:
    machine.spoil = sound
    model, stages = tied
    unsummed = (replace(stages[0], parameters=()), stages[1])
    found = check_gradients(model, unsummed, seed=0, run=machine)
    assert found.tensor.startswith("the gradient of words.weight")
    assert not found.is_within(1e-3)
    unmade = (stages[0], replace(stages[1], parameters=()))
    assert check_gradients(model, unmade, seed=0, run=machine).fault == "is missing"


class Cache(torch.nn.Module):
    """Keeps what it was given in a buffer, as a cache of keys does, and reads all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("kept", torch.zeros(3, 4))

    def forward(self, x):
        self.kept.copy_(torch.cat((self.kept[1:], self.linear(x))))
        return self.kept.sum(0)


class HiddenCount(torch.nn.Module):
    """Counts its calls in a number of Python, which no program holds."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Rotary(torch.nn.Module):
    """Turns pairs by angles that it keeps as complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(6.0), torch.tensor([1.0, 0.1]))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x):
        pairs = torch.view_as_complex(x.view(6, 2, 2))
        return torch.view_as_real(pairs * self.turns).flatten(1)


class Flexible(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 24)

    def forward(self, x):
        query, key, value = self.linear(x).view(1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        return flex_attention(query, key, value, score_mod=lambda score, b, h, q, k: score - (q - k).abs())


@pytest.mark.parametrize(
    ("module", "inputs", "state"),
    [
        (Cache(), (torch.randn(1, 4),), ("kept",)),
        (Rotary(), (torch.randn(6, 4),), ()),
        pytest.param(Flexible(), (torch.randn(1, 6, 8),), (), marks=pytest.mark.slow),
    ],
)
def test_written_buffers_are_inputs_and_results_and_second_calls_agree(
    module, inputs, state: tuple[str, ...], session
) -> None:
    model = import_module(module, inputs, "model")
    assert model.state == state
    error = check_import(model, session)
    assert error is not None
    assert error < 1e-5
    if state:
        assert any("forward writes kept" in note for note in model.notes)
        # What is written is found: a program that forgot it would fail in the second call.
        session.seed = 1
        session.measurer.run.spoil = lambda _, results: [results[0], 0 * results[1]]
        with pytest.raises(TunerError):
            check_import(model, session)


def test_state_that_no_program_holds_is_refused(session) -> None:
    with pytest.raises(UnsupportedOperatorError, match="gives other results when it is called again"):
        check_import(import_module(HiddenCount(), (torch.randn(3),), "counter"), session)


def test_training_refuses_buffers_that_results_depend_on() -> None:
    model = import_module(Cache(), (torch.randn(1, 4),), "cache")
    with pytest.raises(UnsupportedOperatorError, match="writes the buffer kept and its results depend on it"):
        for_training(model)


def test_modules_of_torchscript_are_refused_by_name() -> None:
    scripted = torch.jit.trace(torch.nn.Linear(4, 4), torch.randn(2, 4))
    with pytest.raises(UnsupportedOperatorError, match="is a TorchScript module"):
        import_module(scripted, (torch.randn(2, 4),), "scripted")

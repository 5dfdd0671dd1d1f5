"""Operators of ONNX have the results that onnx states of them, or are refused."""

import importlib
from collections import Counter

import pytest

pytest.importorskip("onnx")
pytest.importorskip("torch")

from benchmarks.onnx_operators import __main__ as command
from benchmarks.onnx_operators.__main__ import Finding, as_table, cases, check, main
from tuner.frontend.onnx import file
from tuner.frontend.onnx.converters import operators

pytestmark = [pytest.mark.tvm, pytest.mark.torch, pytest.mark.onnx]

FEW = ("BitShift", "EyeLike", "IsInf", "Mod", "OneHot", "ReduceMax", "SpaceToDepth", "SwiGLU")
"""Those with converters of their own, and one that onnx writes out, of few or small cases."""


@pytest.fixture(scope="module")
def known() -> dict[str, list]:
    """Return the cases of some: onnx computes the results of all, too, where it is asked for all."""

    def collect(_: object) -> list:
        folder = "onnx.backend.test.case.node"
        for name in (*FEW, "LayerNormalization"):
            importlib.import_module(f"{folder}.{name.lower()}")
        return [*importlib.import_module(folder)._NodeTestCases]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "collect_testcases", collect)
        return cases()


@pytest.mark.parametrize(
    "operator", [pytest.param(name, marks=pytest.mark.slow if name == "Mod" else ()) for name in FEW]
)
def test_an_operator_is_equal_or_refused(operator: str, known: dict[str, list]) -> None:
    found = [check(operator, case) for case in known[operator]]
    outcomes = Counter(each.outcome for each in found)
    assert not outcomes["wrong"], [each for each in found if each.outcome == "wrong"]
    # What is refused: empty tensors, whose extents a file leaves open.
    assert outcomes["refused"] <= {"ReduceMax": 2}.get(operator, 0)


@pytest.mark.slow  # two minutes
def test_no_case_of_any_operator_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "wrong" not in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("operator", "case"),
    [
        ("IsInf", "test_isinf_positive"),
        ("LayerNormalization", "test_layer_normalization_2d_axis0"),
        ("SpaceToDepth", "test_spacetodepth_crd_mode_example"),
    ],
)
def test_without_its_converter_it_is_found_wrong(
    operator: str, case: str, known: dict[str, list], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {name: convert for name, convert in operators.CONVERTERS.items() if name != operator}
    monkeypatch.setattr(file, "CONVERTERS", others)
    (given,) = [each for several in known.values() for each in several if each.name == case]
    assert check(operator, given).outcome == "wrong"


@pytest.mark.slow  # onnx computes all its cases
def test_a_row_that_sees_nothing_is_right_as_users_have_it_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TVM's maximum of infinities alone is the lowest finite number."""
    name = "test_attention_23_boolmask_fullymasked_row_nan_robustness"
    (given,) = [each for several in cases().values() for each in several if each.name == name]
    assert check("Attention", given).outcome == "equal"
    monkeypatch.setattr(command, "run_lowered", command.run)
    assert check("Attention", given).outcome == "wrong"


def test_the_table_has_what_is_not_equal() -> None:
    findings = [
        Finding("Add", "test_add", "equal"),
        Finding("Det", "test_det", "refused", "no operator | Det"),
        Finding("Det", "test_det_2", "equal"),
    ]
    assert as_table(findings).splitlines()[2:] == ["| Det | 1 | 0 | 1 | 0 | no operator / Det |"]


def test_an_unknown_operator_is_named(
    known: dict[str, list], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "cases", lambda: known)
    assert main(["Nothing"]) == 2
    assert "onnx tests no operator 'Nothing'" in capsys.readouterr().err

"""Symbolic expressions: what torch writes is accepted, all else is refused."""

import pytest

from tuner.frontend.torch.exported.symbolic_expression import check_expression, check_symbol


@pytest.mark.parametrize(
    "text",
    [
        "s0",
        "2*s77 + 1",
        "s0**2 // 3 - (u1 % 4)",
        "Symbol('s77', positive=True, integer=True)",
        "Mul(Integer(2), Symbol('s77', positive=True, integer=True))",
        "Add(Integer(-1), FloorDiv(Symbol('s0'), Integer(2)))",
        "Float('1.5', precision=53)",
        "Max(1, Pow(Symbol('s0'), Integer(2)))",
        "Rational(1, 2)",
        "s0 >= 2",
        "Equality(Mod(Symbol('s0'), Integer(2)), Integer(0))",
    ],
)
def test_what_torch_writes_is_accepted(text: str) -> None:
    check_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "print(1)",
        "s0.__class__",
        "s0[0]",
        "Symbol('s0').func",
        "Symbol(s0)",
        "Symbol('s0', cls=print)",
        "Symbol('__builtins__')",
        "Symbol('s 0')",
        "Integer('7')",
        "Float('1' * 9)",
        "Float('1e99999')",
        "lambda: 1",
        "[s0 for s0 in s1]",
        "s0 if s1 else s2",
        "(s0 := 5)",
        "f'{s0}'",
        "'s0'",
        "9**9**9",
        "9**s0",
        "Pow(9, 9999999999)",
        "LShift(1, 9999999999)",
        "2**64**1**1",
        "1" * 30,
        "s0 + # a\n1",
        "s0;s1",
        "ｓ0 + 1",
        "",
        "(" * 300 + "s0" + ")" * 300,
        "-" * 5000 + "1",
        "s0+" * 5000 + "s0",
        "s0, s1",
        "u9999999",
        "*s0",
        "Max(*s0)",
        "Max(**s0)",
        "5!",
        "0.2[1]",
    ],
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expression|symbol|number|extent|exponent|comparison"):
        check_expression(text)


def test_symbols_that_torch_counts_up_to_are_few() -> None:
    check_symbol("u12")
    with pytest.raises(ValueError, match="u1000000"):
        check_symbol("u1000000")

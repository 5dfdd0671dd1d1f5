"""The symbolic expressions of exported programs, parsed by a grammar and never evaluated.

torch writes the extents of a program as text, such as `Add(Mul(Integer(2), Symbol('s0', integer=True)),
Integer(1))`, and reads them back with `sympy.sympify`, which hands the text to Python's `eval`. What passes
here is a tree of known constructors over symbols and numbers, so that evaluating it can only build an
expression: no attribute, no subscript, no other call, no text but the name of a symbol or the digits of a
number, and nothing whose value has more than some thousands of digits. Checked in
tests/tuner/frontend/torch/exported/test_symbolic_expression.py.
"""

from __future__ import annotations

import ast
import re

MAX_LENGTH = 10_000
"""Characters of one expression; the longest seen in an exported program has some hundreds."""

_MAX_NODES = 1000
_MAX_DIGITS = 20
_MAX_EXPONENT = 64
_MAX_POWERS = 2
"""Powers in one expression. Each can make a number `_MAX_EXPONENT` times as long."""

_TEXT = re.compile(r"[A-Za-z0-9_ ().,=+\-*/%<>!']*")
"""What expressions are written in: nothing that Python and SymPy could read in two ways."""

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_COUNTED = re.compile(r"(u|zuf|uf)\d{6,}")
"""Symbols that torch counts up to, one by one, when it loads a program."""

_ASSUMPTIONS = frozenset(
    (
        *("commutative", "extended_real", "finite", "integer", "negative", "nonnegative", "nonzero"),
        *("positive", "rational", "real", "zero"),
    )
)

_CONSTRUCTORS = frozenset(
    (
        # SymPy's own, as srepr writes them and as str does.
        *("Add", "Mul", "Pow", "Max", "Min", "Abs", "Mod", "floor", "ceiling", "Piecewise", "ExprCondPair"),
        *("Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan"),
        *("Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not", "Tuple"),
        # torch's (torch.utils._sympy.functions).
        *("CeilDiv", "CeilToInt", "CleanDiv", "FloatPow", "FloatTrueDiv", "FloorDiv", "FloorToInt"),
        *("Identity", "IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "LShift", "ModularIndexing"),
        *("PowByNatural", "PythonMod", "RShift", "RoundDecimal", "RoundToInt", "ToFloat", "TruncToFloat"),
        *("TruncToInt", "Where"),
    )
)
_POWERS = frozenset(("Pow", "FloatPow", "PowByNatural", "LShift"))
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_NAMED = frozenset(("true", "false", "oo", "int_oo"))


def check_expression(text: str) -> None:
    """Accept an expression over symbols and numbers.

    Raises:
        ValueError: it is anything else; the message quotes what is not allowed.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"an expression of {len(text)} characters; {MAX_LENGTH} are the most")
    if not _TEXT.fullmatch(text):
        raise ValueError(f"the text {_shown(text)} is no symbolic expression")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the text {_shown(text)} is no symbolic expression") from error
    nodes = list(ast.walk(tree))
    powers = sum(isinstance(node, ast.Call) and _called(node) in _POWERS for node in nodes)
    powers += sum(isinstance(node, ast.Pow) for node in nodes)
    if len(nodes) > _MAX_NODES or powers > _MAX_POWERS:
        raise ValueError(f"the expression {_shown(text)} is larger than any extent's")
    try:
        _check(tree.body)
    except RecursionError as error:
        raise ValueError(f"the expression {_shown(text)} is nested deeper than any extent's") from error


def check_symbol(name: str) -> None:
    """Accept the name of a symbol.

    Raises:
        ValueError: it is none.
    """
    if not _SYMBOL.fullmatch(name) or _COUNTED.fullmatch(name) or name.startswith("__"):
        raise ValueError(f"the symbol {_shown(name)} is none that torch writes")


def _check(node: ast.expr) -> None:
    match node:
        case ast.Constant(value=bool() | int() | float()):
            _check_number(node)
        case ast.Name(id=name):
            if name not in _NAMED:
                check_symbol(name)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            _check(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            _check(left)
            _check_exponent(right)
        case ast.BinOp(left=left, op=operator, right=right) if isinstance(operator, _OPERATORS):
            _check(left)
            _check(right)
        case ast.Compare(left=left, ops=operators, comparators=others):
            if not all(isinstance(operator, _COMPARISONS) for operator in operators):
                raise ValueError(f"{_shown(ast.unparse(node))} is no comparison of extents")
            for part in (left, *others):
                _check(part)
        case ast.Call():
            _check_call(node)
        case _:
            raise ValueError(f"{_shown(ast.unparse(node))} stands in a symbolic expression")


def _check_call(node: ast.Call) -> None:
    name, arguments, options = _called(node), node.args, node.keywords
    if name == "Symbol":
        _check_symbol_call(node)
        return
    if name == "Float":
        _check_float(node)
        return
    if options or name not in (*_CONSTRUCTORS, "Integer", "Rational", "BooleanTrue", "BooleanFalse"):
        raise ValueError(f"{_shown(ast.unparse(node))} calls what builds no extent")
    if name in ("Integer", "Rational") and not all(map(_is_integer, arguments)):
        raise ValueError(f"{_shown(ast.unparse(node))} is no number")
    for argument in arguments:
        _check(argument)
    if name in _POWERS and len(arguments) == 2:
        _check_exponent(arguments[1])


def _check_symbol_call(node: ast.Call) -> None:
    match node.args:
        case [ast.Constant(value=str(name))]:
            check_symbol(name)
        case _:
            raise ValueError(f"{_shown(ast.unparse(node))} names no symbol")
    for option in node.keywords:
        match option:
            case ast.keyword(arg=str(name), value=ast.Constant(value=bool())) if name in _ASSUMPTIONS:
                continue
            case _:
                raise ValueError(f"{_shown(ast.unparse(node))} assumes what no symbol of torch does")


def _check_float(node: ast.Call) -> None:
    """Accept `Float('1.5', precision=53)`, as srepr writes numbers with a fraction."""
    match node:
        case (
            ast.Call(args=[ast.Constant(value=str(digits))], keywords=[])
            | ast.Call(
                args=[ast.Constant(value=str(digits))],
                keywords=[ast.keyword(arg="precision" | "prec", value=ast.Constant(value=53))],
            )
        ) if re.fullmatch(r"-?\d{1,40}(\.\d{0,40})?(e[+-]?\d{1,3})?", digits):
            return
        case _:
            raise ValueError(f"{_shown(ast.unparse(node))} is no number")


def _check_number(node: ast.Constant) -> None:
    if isinstance(node.value, int) and abs(node.value) >= 10**_MAX_DIGITS:
        raise ValueError(f"{_shown(str(node.value)[:30])}… has more digits than any extent")


def _check_exponent(node: ast.expr) -> None:
    """Accept a small exponent; anything else could make a number that fills the memory."""
    if not _is_integer(node) and _called(node) != "Integer":
        raise ValueError(f"{_shown(ast.unparse(node))} is an exponent that is no number")
    number = ast.literal_eval(node.args[0] if isinstance(node, ast.Call) and node.args else node)
    if not isinstance(number, int) or abs(number) > _MAX_EXPONENT:
        raise ValueError(f"{_shown(ast.unparse(node))} is an exponent larger than {_MAX_EXPONENT}")


def _is_integer(node: ast.expr) -> bool:
    """Whether a node is a whole number, perhaps with a sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) is int


def _called(node: ast.expr) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")

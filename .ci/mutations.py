"""The mutants of a module: its syntax tree with one small change, each named by what it was and became.

What only words a message, shows a value or types it is left alone: errors, assertions, log lines, formatted
texts, annotations, decorators, `__str__` and `__repr__`; so are the constants and tables of a module, budgets
and tolerances among them, which `benchmarks/` decides.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}  # fmt: skip
NAMED = {"min": "max", "max": "min", "any": "all", "all": "any"}
LEFT_ALONE = ("annotation", "returns", "decorator_list", "type_params")
SKIPPED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed module.

    Attributes:
        line: where the change is.
        key: function, what stood there and what stands there now; unique in the module, and stable while
            other code changes.
        tree: the module.
    """

    line: int
    key: str
    tree: ast.Module


def mutants_of(text: str) -> list[Mutant]:
    """Return every mutant of a module's text, in the order of its lines."""
    original = ast.parse(text)
    seen: Counter[str] = Counter()
    found = []
    for number, (path, change) in enumerate(_changes(original)):
        tree, line, key = _changed(original, path, change)
        seen[key] += 1
        key += f" ({seen[key]})" if seen[key] > 1 else ""
        found.append((line, number, key, tree))
    return [
        Mutant(line, key, ast.fix_missing_locations(tree))
        for line, _, key, tree in sorted(found, key=lambda each: each[:2])
    ]


Path = tuple[tuple[str, int | None], ...]


def _changes(tree: ast.Module) -> Iterator[tuple[Path, int]]:
    """Yield a path to each node that has changes, with the number of the change."""

    def walk(node: ast.AST, path: Path) -> Iterator[tuple[Path, int]]:
        if not _is_skipped(node, path):
            yield from ((path, number) for number in range(len(_alternatives(node))))
            for field, value in ast.iter_fields(node):
                if field in LEFT_ALONE or (field == "keywords" and isinstance(node, ast.ClassDef)):
                    continue
                for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                    if isinstance(child, ast.AST):
                        yield from walk(child, (*path, (field, index)))

    return walk(tree, ())


def _is_skipped(node: ast.AST, path: Path) -> bool:
    if isinstance(node, ast.FunctionDef) and node.name in ("__str__", "__repr__"):
        return True
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return True  # an assertion
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Assign | ast.AnnAssign) and len(path) == 1:
        return True  # a constant, a table or an alias of the module
    if isinstance(node, ast.Expr):
        text = ast.unparse(node.value)
        return isinstance(node.value, ast.Constant) or text.startswith(("logger.", "warnings."))
    return isinstance(node, SKIPPED)


def _changed(original: ast.Module, path: Path, change: int) -> tuple[ast.Module, int, str]:
    """Return the changed tree, which shares with the original what lies off the path, with line and key."""
    tree = node = copy.copy(original)
    function = "module"
    for at, (field, index) in enumerate(path):
        parent, inner = node, getattr(node, field) if index is None else getattr(node, field)[index]
        if isinstance(inner, ast.FunctionDef):
            function = inner.name
        node = copy.copy(inner) if at < len(path) - 1 else _alternatives(inner)[change]
        if index is None:
            setattr(parent, field, node)
        else:
            setattr(
                parent, field, [*getattr(parent, field)[:index], node, *getattr(parent, field)[index + 1 :]]
            )
    ast.copy_location(node, inner)
    before, after = (" ".join(_head(each).split()) for each in (inner, node))
    where = inner.target if isinstance(inner, ast.comprehension) else inner
    return tree, where.lineno, f"{function}: {before} -> {after}"


def _head(node: ast.AST) -> str:
    if isinstance(node, ast.If | ast.While):
        return f"if {ast.unparse(node.test)}"
    if isinstance(node, ast.comprehension):
        return ast.unparse(node).strip()
    return ast.unparse(node)


def _alternatives(node: ast.AST) -> list[ast.AST]:
    """Return what may stand in the place of a node."""
    match node:
        case ast.Compare():
            return [
                ast.Compare(
                    node.left, [*node.ops[:at], COMPARED[type(op)](), *node.ops[at + 1 :]], node.comparators
                )
                for at, op in enumerate(node.ops)
            ]
        case ast.BinOp() if type(node.op) in COMPUTED and not (_is_text(node.left) or _is_text(node.right)):
            return [ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right)]
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            return [
                ast.BoolOp(other, node.values),
                *(_without(node, "values", at) for at in range(len(node.values))),
            ]
        case ast.UnaryOp(op=ast.Not() | ast.USub()) if not isinstance(node.operand, ast.Constant):
            return [node.operand]
        case ast.Constant(value=bool()):
            return [ast.Constant(not node.value)]
        case ast.Constant(value=int()):
            return [ast.Constant(node.value + 1)]
        case ast.Call(func=ast.Name(id=name)) if name in NAMED:
            return [ast.Call(ast.Name(NAMED[name], ast.Load()), node.args, node.keywords)]
        case ast.Call(func=ast.Attribute(attr="where" | "and_" | "union" | "extend" | "update")):
            return [_without(node, "args", at) for at in range(len(node.args))]
        case ast.Tuple(ctx=ast.Load()) if len(node.elts) > 2:
            return [_without(node, "elts", at) for at in range(len(node.elts))]
        case ast.comprehension(ifs=[_, *_]):
            return [_without(node, "ifs", at) for at in range(len(node.ifs))]
        case ast.If() | ast.IfExp() | ast.While() if not isinstance(
            node.test, ast.Compare | ast.BoolOp | ast.UnaryOp
        ):
            negated = copy.copy(node)
            negated.test = ast.UnaryOp(ast.Not(), node.test)
            return [negated]
        case ast.AugAssign() if type(node.op) in COMPUTED and not _is_text(node.value):
            return [ast.AugAssign(node.target, COMPUTED[type(node.op)](), node.value), ast.Pass()]
        case ast.Expr(value=ast.Call() | ast.YieldFrom() | ast.Yield()):
            return [ast.Pass()]
        case ast.Continue():
            return [ast.Break()]
        case ast.Break():
            return [ast.Continue()]
    return []


def _without(node: ast.AST, field: str, at: int) -> ast.AST:
    """Return the node without one of its parts; what is left of two alternatives stands by itself."""
    kept = copy.copy(node)
    left = [part for place, part in enumerate(getattr(node, field)) if place != at]
    if isinstance(node, ast.BoolOp) and len(left) == 1:
        return copy.copy(left[0])
    setattr(kept, field, left)
    return kept


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )

"""Print how large the packages are: lines, modules, folders, functions, parameters and public names.

    python .ci/measure_sizes.py                  of this checkout
    python .ci/measure_sizes.py FOLDER           of another one, such as a worktree of an earlier commit

Compiled kernels take the arrays that numba wants one by one, so their parameters are counted apart.
"""

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

PACKAGES = ("records", "cost_model", "tuner", "tessel", "scripts")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def main(root: Path) -> None:
    """Print the sizes, one a line."""
    texts = {
        path.relative_to(root): path.read_text()
        for name in PACKAGES
        for path in sorted((root / name).rglob("*.py"))
    }
    modules = Counter(str(path.parent) for path in texts if path.name != "__init__.py")
    functions = [(path, each) for path, text in texts.items() for each in _functions(ast.parse(text))]
    ordinary = [(path, each) for path, each in functions if not _is_kernel(each)]
    kernels = [(path, each) for path, each in functions if _is_kernel(each)]
    print("lines by package:", ", ".join(f"{name} {_lines(texts, name)}" for name in PACKAGES))
    print("lines:", sum(text.count("\n") for text in texts.values()), "in", len(texts), "modules")
    longest = max(texts, key=lambda path: texts[path].count("\n"))
    print("longest module:", longest, texts[longest].count("\n"))
    folder, count = modules.most_common(1)[0]
    print("modules of one folder, at most:", count, f"({folder})")
    print("longest function:", _told(functions, _length))
    print("most parameters:", _told(ordinary, _parameters))
    print("most parameters of a compiled kernel:", _told(kernels, _parameters))
    print("public names of `import tessel`:", _public_names(texts[Path("tessel/__init__.py")]))


def _lines(texts: dict[Path, str], package: str) -> int:
    return sum(text.count("\n") for path, text in texts.items() if path.parts[0] == package)


def _functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _parameters(function: Function) -> int:
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def _is_kernel(function: Function) -> bool:
    """Return whether numba compiles it."""
    return any("compiled" in ast.unparse(each) for each in function.decorator_list)


def _told(functions: list[tuple[Path, Function]], size: Callable[[Function], int]) -> str:
    """Return the largest size of a function, where that is, and its name."""
    path, function = max(functions, key=lambda found: size(found[1]))
    return f"{size(function)} ({path}: {function.name})"


def _public_names(text: str) -> int:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return len(ast.literal_eval(node.value))
    return 0


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)

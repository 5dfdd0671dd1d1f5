"""Arithmetic, comparisons, truth values and bits: torch's values in torch's types."""

import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

PAIRS = [
    ("float32", "float32"), ("float32", "int64"), ("int64", "float32"), ("int64", "int32"),
    ("int32", "bool"), ("uint8", "int64"), ("bool", "bool"), ("float16", "float32"),
    ("float16", "int64"), ("float64", "float32"),
]  # fmt: skip


def test_operators_of_two_tensors_promote_as_torch_does(assert_as_torch, draws) -> None:
    cases = {}
    for one, other in PAIRS:
        x, y = draws(2, 3, dtype=one), draws(3, dtype=other)
        for function in (torch.add, torch.mul, torch.div, torch.eq, torch.lt, torch.logical_or):
            cases[f"{function.__name__} {one} {other}"] = function, (x, y)
        if "bool" not in (one, other):
            cases[f"sub {one} {other}"] = torch.sub, (x, y)
        if (one, other) != ("bool", "bool"):
            cases[f"maximum {one} {other}"] = torch.maximum, (x, y)
        if "bool" not in (one, other) and "float" not in one + other:
            cases[f"and {one} {other}"] = torch.bitwise_and, (x, y)
    assert_as_torch(cases)


def test_quotients_and_remainders_round_as_torchs(assert_as_torch, draws) -> None:
    cases = {}
    for dtype in ("float32", "int64", "int32"):
        x = draws(4, 9, dtype=dtype) * 3
        y = draws(9, dtype=dtype, low=1) + 0
        y = torch.where(y == 0, torch.ones_like(y), y) * torch.tensor([1, -1, 1, -1, 1, -1, 1, -1, 1]).to(
            y.dtype
        )
        cases |= {
            f"true {dtype}": (torch.div, (x, y)),
            f"down {dtype}": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (x, y)),
            f"towards zero {dtype}": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (x, y)),
            f"remainder {dtype}": (torch.remainder, (x, y)),
            f"fmod {dtype}": (torch.fmod, (x, y)),
            f"by a number {dtype}": (lambda x: x / 2, (x,)),
            f"down by a number {dtype}": (lambda x: x // 3, (x,)),
            f"rest of a number {dtype}": (lambda x: x % 3, (x,)),
            f"of a number {dtype}": (lambda x: 1 / (x * x + 1), (x,)),
        }
    assert_as_torch(cases)


def test_numbers_beside_tensors_promote_as_torchs(assert_as_torch, draws) -> None:
    cases = {}
    for dtype in ("float32", "float16", "int64", "uint8", "bool"):
        x = draws(3, 1, dtype=dtype)
        cases |= {
            f"times a fraction {dtype}": (lambda x: x * 0.5, (x,)),
            f"plus a number {dtype}": (lambda x: x + 2, (x,)),
            f"less a fraction {dtype}": (lambda x: x > 0.5, (x,)),
            f"sum with a factor {dtype}": (
                lambda x: torch.add(x, x, alpha=2 if x.dtype != torch.bool else False),
                (x,),
            ),
            f"where {dtype}": (lambda x: torch.where(x > 0, x, 0.25), (x,)),
        }
        if dtype != "bool":
            cases[f"from a number {dtype}"] = lambda x: 1 - x, (x,)
            cases[f"difference with a factor {dtype}"] = lambda x: torch.sub(x, x, alpha=3), (x,)
            cases[f"clamped {dtype}"] = lambda x: x.clamp(1, 3), (x,)
            cases[f"clamped below {dtype}"] = lambda x: x.clamp(min=2), (x,)
    tiny = draws(5, dtype="float16")
    cases["a number that a half does not hold"] = lambda x: (x * 1e-8) * 1e8, (tiny,)
    cases["a large one"] = lambda x: x * 1e5 * 1e-4, (tiny * 1e-3,)
    assert_as_torch(cases)


def test_powers_are_torchs(assert_as_torch, draws) -> None:
    x, n, p = draws(2, 5), draws(2, 5, dtype="int64"), draws(2, 5).abs() + 0.1
    cases = {f"x ** {e}": (lambda x, e=e: x**e, (x,)) for e in (0, 1, 2, 3, 4, -1, -2, 5)}
    cases |= {f"p ** {e}": (lambda x, e=e: x**e, (p,)) for e in (0.5, -0.5, 1.7, -0.3)}
    cases |= {f"n ** {e}": (lambda x, e=e: x**e, (n,)) for e in (0, 1, 2, 3, 7)}
    cases |= {"n ** 0.5": (lambda x: x.abs() ** 0.5, (n,)), "2 ** x": (lambda x: 2**x, (x,))}
    cases["p ** x"] = torch.pow, (p, x)
    assert_as_torch(cases)


def test_operators_of_one_tensor_are_torchs(assert_as_torch, draws) -> None:
    small, halves = draws(3, 4), torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.49])
    tiny = torch.tensor([1e-8, -1e-6, 1e-3, 0.0, 0.2, -0.29, 0.31, 5.0, -3.0])
    cases = {}
    for name in (
        "exp",
        "sin",
        "tanh",
        "sigmoid",
        "erf",
        "atan",
        "exp2",
        "square",
        "neg",
        "abs",
        "sign",
        "erfc",
    ):
        cases[name] = getattr(torch, name), (small,)
    for name in ("floor", "ceil", "round", "trunc", "frac"):
        cases[name] = getattr(torch, name), (halves,)
    for name in ("expm1", "log1p", "sinh", "asinh"):
        cases[name] = getattr(torch, name), (tiny,)
        function = getattr(torch, name)
        cases[f"{name} magnified"] = lambda x, f=function: f(x * 1e-4) * 1e6, (tiny,)
    for name in ("sqrt", "rsqrt", "log", "log2", "log10", "reciprocal", "lgamma")[:6]:
        cases[name] = getattr(torch, name), (small.abs() + 0.1,)
    for name in ("exp", "sqrt", "sin", "reciprocal", "sigmoid"):
        cases[f"{name} of whole numbers"] = getattr(torch, name), (draws(4, dtype="int64").abs() + 1,)
    for dtype in ("int32", "uint8", "bool"):
        if dtype != "bool":
            cases[f"abs {dtype}"] = torch.abs, (draws(4, dtype=dtype),)
        cases[f"isnan {dtype}"] = torch.isnan, (draws(4, dtype=dtype),)
        cases[f"not {dtype}"] = torch.bitwise_not, (draws(4, dtype=dtype),)
    cases["no axes"] = lambda x: x * 2 + 1, (torch.tensor(1.5),)
    assert_as_torch(cases)


def test_bits_are_torchs(assert_as_torch, draws) -> None:
    cases = {}
    for dtype in ("int64", "int32", "uint8"):
        x, y = draws(7, dtype=dtype), draws(7, dtype=dtype, low=0, high=5)
        cases |= {
            f"left {dtype}": (lambda x, y: x << y, (x, y)),
            f"right {dtype}": (lambda x, y: x >> y, (x, y)),
            f"left by a number {dtype}": (lambda x: x << 2, (x,)),
            f"xor {dtype}": (torch.bitwise_xor, (x, y)),
        }
    truths = draws(6, dtype="bool"), draws(6, dtype="bool")
    cases |= {f"{f.__name__} of truth": (f, truths) for f in (torch.bitwise_and, torch.bitwise_or, torch.ne)}
    assert_as_torch(cases)


def test_what_is_not_a_number_is_passed_on(assert_as_torch) -> None:
    odd = torch.tensor([1.0, float("nan"), float("-inf"), float("inf"), -2.0])
    other = torch.tensor([float("nan"), 1.0, 2.0, 3.0, -1.0])
    cases = {
        "maximum": (torch.maximum, (odd, other)),
        "minimum": (torch.minimum, (odd, other)),
        "fmax": (torch.fmax, (odd, other)),
        "isnan": (torch.isnan, (odd,)),
        "isinf": (torch.isinf, (odd,)),
        "nan_to_num": (torch.nan_to_num, (odd,)),
    }
    assert_as_torch(cases)


def test_products_with_zero_and_quotients_of_zero_keep_nan(assert_as_torch) -> None:
    """TVM takes both for zero where the zero is a number in the code."""
    odd = torch.tensor([1.0, float("nan"), float("-inf"), float("inf"), -2.0, 0.0, -1e-40])
    cases = {}
    for dtype in (torch.float32, torch.float16):
        x = odd.to(dtype)
        cases |= {
            f"times zero {dtype}": (lambda x: x * 0.0, (x,)),
            f"zero times {dtype}": (lambda x: x.new_zeros(()) * x, (x,)),
            f"less nothing {dtype}": (lambda x: torch.sub(x, x, alpha=0), (x,)),
            f"zero by {dtype}": (lambda x: x.new_zeros(()) / x, (x,)),
        }
    assert_as_torch(cases)


def test_borders_of_logarithms_exponentials_and_signs_are_torchs(assert_as_torch) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([0.0, -0.0, 1e-9, -1e-9, 1e-4, 0.3, -0.5, -1.0, 3.0, 1e9, inf, -inf, nan])
    tiny = torch.tensor([6e-8, 1e-7, 1.5e-7, -4e-8, -1e-7, 2e-7, 1e-3, 2e-3])
    near = torch.tensor([-1.0 + 1e-7, -0.999, -0.9, -0.6])
    factors = torch.tensor([0.0, -0.0, 1.0])[:, None]
    ones = torch.tensor([1.0, -1.0, 0.0])[:, None]
    assert_as_torch(
        {
            "log1p": (torch.log1p, (x,)),
            "log1p of tiny numbers": (torch.log1p, (tiny,)),
            "log1p near -1": (torch.log1p, (near,)),
            "log1p of halves": (torch.log1p, (x.half(),)),
            "log1p of doubles": (torch.log1p, (tiny.double() * 1e-8,)),
            "expm1": (torch.expm1, (x * 100,)),
            "signbit": (torch.signbit, (x[:-1],)),
            "copysign": (lambda a, b: 1 / torch.copysign(a, b), (ones, x[:-1])),
            "sinc": (torch.sinc, (x,)),
            "xlogy": (torch.xlogy, (factors, x)),
            "xlog1py": (torch.special.xlog1py, (factors, x)),
            "elu": (torch.nn.functional.elu, (x * 100,)),
            "selu": (torch.nn.functional.selu, (x * 100,)),
            "celu": (lambda a: torch.nn.functional.celu(a, 0.5), (x * 100,)),
            "median": (torch.median, (torch.tensor([3.0, inf, -inf, 1.0]),)),
            "median of infinities": (torch.median, (torch.full((3,), -inf),)),
            "median with NaN": (torch.median, (x,)),
            "norm of a root": (lambda a: torch.linalg.vector_norm(a, 0.5, 1), (ones * x[:-2],)),
            "norm of a reciprocal": (lambda a: torch.linalg.vector_norm(a, -1, 1), (ones * x[2:10],)),
            "norm of reciprocals of infinities": (
                lambda a: torch.linalg.vector_norm(a, -1, 1),
                (torch.tensor([[inf, -inf], [1.0, inf], [0.0, inf], [nan, inf]]),),
            ),
        }
    )

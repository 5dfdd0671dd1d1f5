"""The closed vocabulary of the tensor language, and how words and numbers are written in it.

A number is written as its magnitude (floor of log2) and its prime powers, so that what a tile may be can be
read off an extent, and values that no training text held can be written: primes above 13 are spelled in
digits. A word that is not listed is spelled in letters. The list of tokens never changes within a version;
weights name the version that they were trained with. Checked in tests/tuner/language/test_vocabulary.py.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

VOCABULARY_VERSION = 1

PRIME_POWERS = {2: 12, 3: 6, 5: 4, 7: 3, 11: 2, 13: 2}
"""Largest power of each prime that is one token; a higher one is written as several."""

PADDING, BEGIN, END = "<padding>", "<begin>", "<end>"
TARGET, ARGUMENT, BLOCK, SKETCH, INSTRUCTIONS, DECISIONS = (
    "<target>",
    "<argument>",
    "<block>",
    "<sketch>",
    "<instructions>",
    "<decisions>",
)
TILE, OPTION, LOCATION = "<tile>", "<option>", "<location>"
CLOSE = ";"
DIGITS = "digits:"
"""Begins the part of a number that primes up to 13 do not divide."""
SPELLED = "spelled:"
ZERO, MINUS = "zero", "minus"

MAX_MAGNITUDE = 63
MAX_INDEX = 63
"""Largest index of a choice, of a place in a text, or of a loop to compute at."""

_MARKS = (
    *(PADDING, BEGIN, END, TARGET, ARGUMENT, BLOCK, SKETCH, INSTRUCTIONS, DECISIONS),
    *(TILE, OPTION, LOCATION, CLOSE, DIGITS, SPELLED, ZERO, MINUS),
)
_NAMES = (
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"),
    *("spatial", "reduction", "other", "llvm", "cuda", "cpu", "num", "cores", "mcpu", "arch", "kind", "max"),
    *("threads", "per", "block", "shared", "memory", "size", "warp", "thread", "keys", "vector"),
    *("matmul", "dense", "conv", "nchw", "nhwc", "group", "depthwise", "pad", "temp", "add", "subtract"),
    *("multiply", "divide", "maximum", "minimum", "min", "relu", "gelu", "compute", "exp", "erf", "tanh"),
    *("sigmoid", "sqrt", "rsqrt", "power", "softmax", "red", "sum", "mean", "reshape", "transpose", "batch"),
    *("layer", "norm", "nn", "nt", "tn", "tt", "t", "pool", "avg", "adaptive", "cast", "take", "concat"),
    *("split", "where", "expsum", "maxelem", "root", "main", "intermediate", "cache", "init", "update", "d"),
    *("meta", "schedule", "tiling", "structure", "parallel", "vectorize", "unroll", "explicit", "implicit"),
    *("ssrsrs", "sssrrsrs", "global", "local", "rf", "auto", "true", "false", "none", "layout", "free"),
    *("placeholders", "producer", "consumer", "spatially", "unrollable", "tensorize"),
)
_INSTRUCTIONS = (
    *("GetSBlock", "GetLoops", "GetChildBlocks", "GetConsumers", "GetProducers", "GetOutputBlocks"),
    *("SamplePerfectTile", "SampleCategorical", "SampleComputeLocation", "Split", "Fuse", "Reorder", "Merge"),
    *("ComputeAt", "ReverseComputeAt", "ComputeInline", "ReverseComputeInline", "CacheRead", "CacheWrite"),
    *("Annotate", "Unannotate", "Parallel", "Vectorize", "Unroll", "Bind", "AddUnitLoop", "RFactor"),
    *("DecomposeReduction", "StorageAlign", "SetScope", "Blockize", "Tensorize", "TransformLayout"),
)


def _all_tokens() -> Iterator[str]:
    yield from _MARKS
    yield from (f"{prime}^{power}" for prime, most in PRIME_POWERS.items() for power in range(1, most + 1))
    yield from (f"~{magnitude}" for magnitude in range(MAX_MAGNITUDE + 1))
    yield from (f"#{index}" for index in range(MAX_INDEX + 1))
    yield from (f"@{index}" for index in range(-2, MAX_INDEX + 1))
    yield from (f"'{character}'" for character in "0123456789abcdefghijklmnopqrstuvwxyz")
    yield from (f"{kind}{index}" for kind in "blv" for index in range(128))
    yield from _INSTRUCTIONS
    yield from dict.fromkeys(_NAMES)


TOKENS = tuple(_all_tokens())

_ID = {token: index for index, token in enumerate(TOKENS)}


def ids_of(tokens: Sequence[str]) -> list[int]:
    """Return each token's number.

    Raises:
        ValueError: a token is not in the vocabulary.
    """
    try:
        return [_ID[token] for token in tokens]
    except KeyError as error:
        raise ValueError(
            f"token {error.args[0]!r} is not in version {VOCABULARY_VERSION} of the vocabulary; a kernel "
            "with it cannot be written"
        ) from error


def word_tokens(name: str) -> list[str]:
    """Return a name as its words; numbers inside it are left out, and words that are not listed are spelled.

    Signs other than letters separate words.
    """
    tokens = []
    for word in re.findall("[a-z]+", name.lower()):
        tokens += [word] if word in _ID else [SPELLED, *(f"'{letter}'" for letter in word), CLOSE]
    return tokens


def text_tokens(text: str) -> list[str]:
    """Return a short text that is no name, such as a micro-architecture: spelled, with its digits."""
    return [SPELLED, *(f"'{letter}'" for letter in re.findall("[a-z0-9]", text.lower())), CLOSE]


def number_tokens(number: int) -> list[str]:
    """Return a whole number with its magnitude.

    Raises:
        ValueError: it has more than 63 bits.
    """
    if number == 0:
        return [ZERO]
    if number < 0:
        return [MINUS, *number_tokens(-number)]
    magnitude = number.bit_length() - 1
    if magnitude > MAX_MAGNITUDE:
        raise ValueError(f"number {number} has more than {MAX_MAGNITUDE} bits, and cannot be written")
    return [f"~{magnitude}", *factor_tokens(number)]


def factor_tokens(number: int) -> list[str]:
    """Return a positive number as its prime powers, smallest prime first; nothing for 1."""
    tokens = []
    for prime, most in PRIME_POWERS.items():
        power = 0
        while number % prime == 0:
            number //= prime
            power += 1
        tokens += [f"{prime}^{min(most, power - done)}" for done in range(0, power, most)]
    return tokens + ([DIGITS, *(f"'{digit}'" for digit in str(number))] if number > 1 else [])


def read_factors(tokens: Sequence[str]) -> int:
    """Return the number that `factor_tokens` wrote.

    Raises:
        ValueError: it wrote no such tokens.
    """
    number, position = 1, 0
    while position < len(tokens) and tokens[position] != DIGITS:
        prime, _, power = tokens[position].partition("^")
        if not (prime.isdigit() and power.isdigit()):
            raise ValueError(f"{tokens[position]!r} is no prime power; numbers are written in those")
        number *= int(prime) ** int(power)
        position += 1
    digits = "".join(token.strip("'") for token in itertools.islice(tokens, position + 1, None))
    number *= int(digits) if digits else 1
    if factor_tokens(number) != list(tokens):
        raise ValueError(f"{' '.join(tokens)} is not how {number} is written")
    return number

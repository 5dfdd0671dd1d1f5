"""The legal decisions of one sampling instruction of a schedule, and their encoding as tokens.

A choice is a set of legal decisions; `next_tokens` returns the tokens that may follow a prefix, so that
decoding yields legal decisions only, whichever model picks the tokens. A tile is written from the innermost
factor to the second; the outermost is what remains of the extent, and is not written. Checked in
tests/tuner/language/test_choices.py: every text that can be written is a legal decision, every legal decision
can be written, and reading gives back what was written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from tuner.language.vocabulary import (
    CLOSE,
    LOCATION,
    MAX_INDEX,
    OPTION,
    PRIME_POWERS,
    TILE,
    factor_tokens,
    number_tokens,
    read_factors,
)

Decision: TypeAlias = int | tuple[int, ...]
"""Factors of a tile from the outermost in; or the index of an option, or of a loop to compute at."""


@dataclass(frozen=True, slots=True)
class TileChoice:
    """How a loop is split into a given number of loops; their extents multiply to its own.

    Attributes:
        extent: of the loop, at least 1.
        parts: loops it becomes, at least 1.
        max_innermost: largest extent of the innermost of several, at least 1.
    """

    extent: int
    parts: int
    max_innermost: int

    def __post_init__(self) -> None:
        if min(self.extent, self.parts, self.max_innermost) < 1:
            raise ValueError(f"{self} has a number below 1; extents and parts are at least 1")

    @property
    def header(self) -> list[str]:
        """What stands before the decision."""
        return [TILE, f"#{self.parts}", *number_tokens(self.extent)]

    def write(self, decision: Decision) -> list[str]:
        """Return the tokens of a decision.

        Raises:
            ValueError: it is not legal.
        """
        if (
            not isinstance(decision, tuple)
            or len(decision) != self.parts
            or min(decision) < 1
            or math.prod(decision) != self.extent
            or (self.parts > 1 and decision[-1] > self.max_innermost)
        ):
            raise ValueError(
                f"{decision} is no tile of {self.extent} in {self.parts} parts with at most "
                f"{self.max_innermost} innermost; give factors whose product is the extent"
            )
        return [token for factor in decision[:0:-1] for token in (*factor_tokens(factor), CLOSE)]

    def read(self, tokens: Sequence[str]) -> tuple[int, ...]:
        """Return the decision that the tokens write.

        Raises:
            ValueError: they are none.
        """
        written, rest = _closed(tokens)
        if len(written) != self.parts - 1 or rest or self.extent % math.prod(written):
            raise ValueError(f"{' '.join(tokens)} is no tile of {self.extent} in {self.parts} parts")
        decision = (self.extent // math.prod(written), *reversed(written))
        self.write(decision)
        return decision

    def next_tokens(self, tokens: Sequence[str]) -> tuple[str, ...]:
        """Return the tokens that may follow a prefix of a decision; none once it is complete."""
        written, rest = _closed(tokens)
        if len(written) == self.parts - 1:
            return ()
        limit = self.max_innermost if not written else self.extent
        return _next_of_factor(self.extent // math.prod(written), limit, tuple(rest))


@dataclass(frozen=True, slots=True)
class OptionChoice:
    """The index of one of several options."""

    num_options: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_options <= MAX_INDEX + 1:
            raise ValueError(
                f"{self.num_options} options cannot be written; there must be 1 to {MAX_INDEX + 1}"
            )

    @property
    def header(self) -> list[str]:
        """What stands before the decision."""
        return [OPTION]

    def write(self, decision: Decision) -> list[str]:
        """Return the token of a decision.

        Raises:
            ValueError: it is not legal.
        """
        if not isinstance(decision, int) or not 0 <= decision < self.num_options:
            raise ValueError(f"{decision} is none of {self.num_options} options; they count from 0")
        return [f"#{decision}"]

    def read(self, tokens: Sequence[str]) -> int:
        """Return the decision that the token writes.

        Raises:
            ValueError: it is none.
        """
        return _index(tokens, "#", range(self.num_options))

    def next_tokens(self, tokens: Sequence[str]) -> tuple[str, ...]:
        """Return every option, or nothing where one is written."""
        return () if tokens else tuple(f"#{index}" for index in range(self.num_options))


@dataclass(frozen=True, slots=True)
class LocationChoice:
    """At which loop of its consumer a block is computed: −2 inlines it, −1 leaves it where it is."""

    locations: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.locations or min(self.locations) < -2 or max(self.locations) > MAX_INDEX:
            raise ValueError(
                f"locations {self.locations} cannot be written; they are at least one of -2 to {MAX_INDEX}"
            )

    @property
    def header(self) -> list[str]:
        """What stands before the decision."""
        return [LOCATION]

    def write(self, decision: Decision) -> list[str]:
        """Return the token of a decision.

        Raises:
            ValueError: it is not legal.
        """
        if decision not in self.locations:
            raise ValueError(f"location {decision} is none of {self.locations}; give one of those")
        return [f"@{decision}"]

    def read(self, tokens: Sequence[str]) -> int:
        """Return the decision that the token writes.

        Raises:
            ValueError: it is none.
        """
        return _index(tokens, "@", self.locations)

    def next_tokens(self, tokens: Sequence[str]) -> tuple[str, ...]:
        """Return every location, or nothing where one is written."""
        return () if tokens else tuple(f"@{location}" for location in self.locations)


Choice: TypeAlias = TileChoice | OptionChoice | LocationChoice


def _index(tokens: Sequence[str], mark: str, legal: Sequence[int]) -> int:
    text = tokens[0].removeprefix(mark) if len(tokens) == 1 and tokens[0].startswith(mark) else ""
    if not text.lstrip("-").isdigit() or int(text) not in legal:
        raise ValueError(f"{' '.join(tokens)!r} is none of {len(legal)} choices")
    return int(text)


def _closed(tokens: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the complete numbers, and the tokens of the incomplete one."""
    numbers: list[int] = []
    rest: list[str] = []
    for token in tokens:
        if token == CLOSE:
            numbers.append(read_factors(rest))
            rest = []
        else:
            rest.append(token)
    return numbers, rest


@lru_cache(maxsize=65536)
def _next_of_factor(remaining: int, limit: int, written: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tokens that may follow in a divisor of what remains, at most the limit."""
    legal = [list(map(str, factor_tokens(each))) for each in _divisors(remaining) if each <= limit]
    begun = [tokens for tokens in legal if tuple(tokens[: len(written)]) == written]
    following = {tokens[len(written)] if len(tokens) > len(written) else CLOSE for tokens in begun}
    return tuple(sorted(following))


@lru_cache(maxsize=4096)
def _divisors(number: int) -> tuple[int, ...]:
    """Return every divisor; a number whose part without primes up to 13 is P costs O(√P)."""
    divisors = [1]
    rest = number
    for prime in PRIME_POWERS:
        power = 0
        while rest % prime == 0:
            rest //= prime
            power += 1
        divisors = [each * prime**done for each in divisors for done in range(power + 1)]
    candidate = 17
    while candidate * candidate <= rest:
        power = 0
        while rest % candidate == 0:
            rest //= candidate
            power += 1
        divisors = [each * candidate**done for each in divisors for done in range(power + 1)]
        candidate += 2
    if rest > 1:
        divisors += [each * rest for each in divisors]
    return tuple(sorted(divisors))

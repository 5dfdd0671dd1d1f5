"""Only legal decisions can be written, all of them can, and they read back as they were."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.language.choices import Choice, Decision, LocationChoice, OptionChoice, TileChoice
from tuner.language.vocabulary import ids_of

tiles = st.builds(TileChoice, st.integers(1, 5000), st.integers(1, 5), st.sampled_from([1, 8, 16, 64]))
locations = st.sets(st.integers(-2, 63), min_size=1).map(lambda found: LocationChoice(tuple(sorted(found))))
choices = st.one_of(tiles, st.builds(OptionChoice, st.integers(1, 64)), locations)


def is_legal(choice: Choice, decision: Decision) -> bool:
    if isinstance(choice, TileChoice):
        assert isinstance(decision, tuple)
        return (
            len(decision) == choice.parts
            and min(decision) >= 1
            and math.prod(decision) == choice.extent
            and (choice.parts == 1 or decision[-1] <= choice.max_innermost)
        )
    if isinstance(choice, OptionChoice):
        return decision in range(choice.num_options)
    return decision in choice.locations


@given(choices, st.integers(0, 2**32))
def test_whatever_is_picked_among_next_tokens_is_a_legal_decision(choice: Choice, seed: int) -> None:
    rng = random.Random(seed)
    written: list[str] = []
    while following := choice.next_tokens(written):
        assert len(set(following)) == len(following)
        written.append(rng.choice(following))
    ids_of([*choice.header, *written])
    decision = choice.read(written)
    assert is_legal(choice, decision)
    assert choice.write(decision) == written


def all_written(choice: Choice, written: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    following = choice.next_tokens(written)
    if not following:
        yield written
    for token in following:
        yield from all_written(choice, (*written, token))


@pytest.mark.parametrize("extent", [1, 2, 12, 17, 34, 60, 97, 221])
@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("max_innermost", [1, 4, 64])
def test_every_legal_tile_can_be_written(extent: int, parts: int, max_innermost: int) -> None:
    choice = TileChoice(extent, parts, max_innermost)
    divisors = [each for each in range(1, extent + 1) if extent % each == 0]
    legal = {each for each in itertools.product(divisors, repeat=parts) if is_legal(choice, each)}
    written = list(all_written(choice))
    assert {choice.read(tokens) for tokens in written} == legal
    assert len(written) == len(legal)


def test_a_prime_beyond_the_vocabulary_is_spelled() -> None:
    choice = TileChoice(197 * 4, 3, 64)
    assert choice.write((4, 197, 1)) == [";", "digits:", "'1'", "'9'", "'7'", ";"]
    assert "digits:" not in choice.next_tokens([]), "197 is no legal innermost factor"
    assert choice.next_tokens([";", "digits:"]) == ("'1'",)


def test_what_is_not_legal_is_refused() -> None:
    for decision in ((2, 2), (2, 2, 4), (96, 1, 1, 1), 3, (1, 1, 96)):
        with pytest.raises(ValueError, match="is no tile of 96"):
            TileChoice(96, 3, 64).write(decision)
    for tokens in (["2^1", ";"], ["5^1", ";", ";"], ["2^1", ";", ";", "2^1"], ["2^5", "3^1", ";", ";"]):
        with pytest.raises(ValueError, match="is no tile of 96"):
            TileChoice(96, 3, 64).read(tokens)
    with pytest.raises(ValueError, match="is none of 4 options"):
        OptionChoice(4).write(4)
    with pytest.raises(ValueError, match="is none of 4 choices"):
        OptionChoice(4).read(["#4"])
    with pytest.raises(ValueError, match="is none of"):
        LocationChoice((-2, 3)).write(0)
    with pytest.raises(ValueError, match="is none of 2 choices"):
        LocationChoice((-2, 3)).read(["@0"])
    for refused in (lambda: TileChoice(0, 2, 4), lambda: OptionChoice(65), lambda: LocationChoice((64,))):
        with pytest.raises(ValueError, match=r"below 1|cannot be written"):
            refused()

"""Whatever number or word there is can be written in the closed vocabulary, and numbers read back."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.language.vocabulary import (
    TOKENS,
    VOCABULARY_VERSION,
    factor_tokens,
    ids_of,
    number_tokens,
    read_factors,
    text_tokens,
    word_tokens,
)


def test_the_tokens_of_a_version_do_not_change() -> None:
    assert len(set(TOKENS)) == len(TOKENS)
    digest = hashlib.blake2b("\n".join(TOKENS).encode(), digest_size=8).hexdigest()
    assert (VOCABULARY_VERSION, digest) == (1, "a6f555b46654e892"), "new tokens are a new version"


@given(st.integers(1, 2**40))
def test_a_number_reads_back(number: int) -> None:
    tokens = factor_tokens(number)
    assert read_factors(tokens) == number
    assert [TOKENS[index] for index in ids_of(tokens)] == tokens


@given(st.integers(-(2**62), 2**62))
def test_every_number_can_be_written(number: int) -> None:
    assert ids_of(number_tokens(number))


@given(st.text(max_size=40))
def test_every_name_can_be_written(text: str) -> None:
    ids_of(word_tokens(text))
    ids_of(text_tokens(text))


def test_names_are_words_and_unknown_ones_are_spelled() -> None:
    assert word_tokens("T_matmul_NN2") == ["t", "matmul", "nn"]
    assert word_tokens("conv2d_zq") == ["conv", "d", "spelled:", "'z'", "'q'", ";"]
    assert text_tokens("Znver4") == ["spelled:", "'z'", "'n'", "'v'", "'e'", "'r'", "'4'", ";"]


def test_what_is_no_number_is_refused() -> None:
    assert number_tokens(96 * 17) == ["~10", "2^5", "3^1", "digits:", "'1'", "'7'"]
    for tokens in (["3^1", "2^1"], ["2^1", "2^1"], ["zero"], ["digits:", "'1'", "'2'"]):
        with pytest.raises(ValueError, match=r"is no prime power|is not how"):
            read_factors(tokens)
    with pytest.raises(ValueError, match="is not in version 1"):
        ids_of(["17^1"])
    with pytest.raises(ValueError, match="more than 63 bits"):
        number_tokens(2**64)

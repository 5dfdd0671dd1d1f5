"""A text holds what is given and what is decided, and its decisions read back from it alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.language_texts import read_decisions
from tuner.language.choices import Choice, LocationChoice, OptionChoice, TileChoice
from tuner.language.text import (
    Argument,
    Block,
    KernelText,
    SketchText,
    Text,
    write_text,
)
from tuner.language.vocabulary import DECISIONS, TOKENS

KERNEL = KernelText(
    {"kind": "llvm", "num-cores": 2},
    (Argument("float32", (6, 8)), Argument("float4_e2m1fn", (6,))),
    (Block("T_matmul", (("spatial", 6), ("reduction", 8))),),
    num_sketches=2,
)
INSTRUCTIONS = [
    ["GetSBlock", [], ["T_matmul", "main"], ["b7"]],
    ["GetLoops", ["b7"], [], ["l8", "l9"]],
    ["SamplePerfectTile", ["l9"], [2, 64], ["v10", "v11"]],
    ["Annotate", ["b7", '"SSRSRS"'], ["meta_schedule.tiling_structure"], []],
    ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v12"]],
]

choices_of_a_sketch = st.lists(
    st.one_of(
        st.builds(TileChoice, st.integers(1, 400), st.integers(1, 4), st.just(64)),
        st.builds(OptionChoice, st.integers(1, 5)),
        st.just(LocationChoice((-2, -1, 4))),
    ),
    max_size=6,
)


def written(choices: list[Choice], rng: random.Random) -> tuple[list[object], Text]:
    decisions = []
    for choice in choices:
        tokens: list[str] = []
        while following := choice.next_tokens(tokens):
            tokens.append(rng.choice(following))
        decisions.append(choice.read(tokens))
    sketch = SketchText.of_instructions(INSTRUCTIONS)
    return list(decisions), write_text(KERNEL, sketch, index=1, choices=choices, decisions=decisions)


@given(choices_of_a_sketch, st.integers(0, 2**32))
def test_decisions_read_back_from_their_text(choices: list[Choice], seed: int) -> None:
    decisions, text = written(choices, random.Random(seed))
    tokens = [TOKENS[number] for number in text.ids]
    body = tokens[tokens.index(DECISIONS) + 1 :]
    assert list(read_decisions(choices, body)) == decisions
    for changed in (body[:-1], [*body, body[-1]], ["<begin>", *body]):
        with pytest.raises(ValueError, match=r"goes on after|does not begin|may stand there"):
            read_decisions(choices, changed)


def test_a_text_says_what_is_given_and_marks_what_is_decided() -> None:
    _, text = written([TileChoice(8, 2, 64), OptionChoice(2)], random.Random(3))
    tokens = [TOKENS[number] for number in text.ids]
    line = " ".join(tokens)
    assert line.startswith("<begin> <target> kind spelled: 'l' 'l' 'v' 'm' ; num cores ~1 2^1 <argument>")
    assert "<block> t matmul spatial ~2 2^1 3^1 reduction ~3 2^3 <sketch> #2 #1 <instructions>" in line
    assert "SamplePerfectTile l1 ~1 2^1 ~6 2^6" in line, "names are numbered anew"
    assert "SampleCategorical zero ~4 2^4" in line, "probabilities are left out"
    decided = [token for token, is_decided in zip(tokens, text.decided, strict=True) if is_decided]
    assert decided[0] == "#1"
    assert set(decided[1:-1]) <= {";", "2^1", "2^2", "2^3"}
    assert decided[-1].startswith("#")

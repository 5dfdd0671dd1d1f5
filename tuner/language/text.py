"""The text of a schedule: what is given (kernel, target, sketch), and what is decided.

    <begin> <target> … <argument> … <block> … <sketch> #3   #1   <instructions> … <decisions>
    <tile> #4 ~6 2^6   2^2 ; 2^1 ; ;   <tile> …   <option>   #2   <location>   @7   <end>

Numbers of sketch, factors, options and locations are decided; all else is given, and is forced when a
model writes. Names are replaced by numbers in the order in which an instruction makes them. Texts are built
from plain data, without TVM. Checked in tests/tuner/language/test_text.py.

Source: Zhai et al., "Enabling Tensor Language Model to Assist in Generating High-Performance Tensor Programs
for Deep Learning", OSDI 2024, section 4. Differences: numbers are written by prime powers and not as words
of their own, the sketch is part of what is decided, only what is decided is learnt, and what may be written
is restricted to what is legal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.language.choices import Choice, Decision, OptionChoice
from tuner.language.vocabulary import (
    ARGUMENT,
    BEGIN,
    BLOCK,
    DECISIONS,
    END,
    INSTRUCTIONS,
    SKETCH,
    TARGET,
    ids_of,
    number_tokens,
    text_tokens,
    word_tokens,
)

_FLOATS_LEFT_OUT = "SampleCategorical"
"""Its second attribute, the probabilities of its options, is no part of a program."""

Instruction = Sequence[Any]
"""TVM's JSON of one: kind, inputs, attributes, outputs."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor that the kernel reads or writes."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A computation of the kernel: its name, and kind and extent of each of its iterations."""

    name: str
    iterations: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class KernelText:
    """What is given of a kernel.

    Attributes:
        target: features of the target by name: numbers, or short texts.
        arguments: in the order of the kernel's parameters.
        blocks: in the order in which they run.
        num_sketches: to choose among, at least 1.
    """

    target: Mapping[str, int | str]
    arguments: tuple[Argument, ...]
    blocks: tuple[Block, ...]
    num_sketches: int

    @property
    def tokens(self) -> list[str]:
        """The text up to where the sketch is decided."""
        tokens = [BEGIN, TARGET]
        for name, value in self.target.items():
            tokens += word_tokens(name)
            tokens += number_tokens(value) if isinstance(value, int) else text_tokens(value)
        for argument in self.arguments:
            tokens += [ARGUMENT, *word_or_text(argument.dtype)]
            tokens += _numbers(argument.shape)
        for block in self.blocks:
            tokens += [BLOCK, *word_tokens(block.name)]
            for kind, extent in block.iterations:
                tokens += [kind, *number_tokens(extent)]
        return [*tokens, SKETCH, f"#{self.num_sketches}"]

    @property
    def sketch_choice(self) -> OptionChoice:
        """What is decided first."""
        return OptionChoice(self.num_sketches)


@dataclass(frozen=True, slots=True)
class SketchText:
    """What is given of a sketch once it is chosen."""

    tokens: list[str]

    @staticmethod
    def of_instructions(instructions: Iterable[Instruction]) -> SketchText:
        """Write down instructions; names are numbered as they are made, and not written there."""
        names: dict[str, str] = {}
        counts = {"b": 0, "l": 0, "v": 0}
        tokens = [INSTRUCTIONS]
        for kind, inputs, attributes, outputs in instructions:
            tokens.append(kind)
            for each in inputs:
                tokens += _value(each, names)
            given = attributes[:1] if kind == _FLOATS_LEFT_OUT else attributes
            for each in given:
                tokens += _value(each, names)
            for each in outputs:
                letter = each[:1]
                names[each] = f"{letter}{counts[letter]}"
                counts[letter] += 1
        return SketchText([*tokens, DECISIONS])


@dataclass(frozen=True, slots=True)
class Text:
    """A whole text, in numbers of tokens.

    Attributes:
        ids: the tokens.
        decided: whether each was decided, as opposed to given.
    """

    ids: tuple[int, ...]
    decided: tuple[bool, ...]


def write_text(
    kernel: KernelText,
    sketch: SketchText,
    *,
    index: int,
    choices: Sequence[Choice],
    decisions: Sequence[Decision],
) -> Text:
    """Return the text of a schedule.

    Args:
        kernel: what is given.
        sketch: the one that is chosen.
        index: its number.
        choices: what each decision is chosen among.
        decisions: as many.

    Raises:
        ValueError: a decision is not legal, or a token is not in the vocabulary.
    """
    parts = [
        (kernel.tokens, False),
        (kernel.sketch_choice.write(index), True),
        (sketch.tokens, False),
    ]
    for choice, decision in zip(choices, decisions, strict=True):
        parts += [(choice.header, False), (choice.write(decision), True)]
    parts.append(([END], False))
    return Text(
        ids=tuple(number for tokens, _ in parts for number in ids_of(tokens)),
        decided=tuple(is_decided for tokens, is_decided in parts for _ in tokens),
    )


def word_or_text(name: str) -> list[str]:
    """Return a data type's name: a token of its own where it has one, else spelled."""
    try:
        ids_of([name])
    except ValueError:
        return text_tokens(name)
    return [name]


def _numbers(numbers: Iterable[int]) -> list[str]:
    return [token for number in numbers for token in number_tokens(number)]


def _value(value: Any, names: Mapping[str, str]) -> list[str]:
    """Return an input or attribute of an instruction."""
    if value is None or isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, int):
        return number_tokens(value)
    if isinstance(value, float):
        return text_tokens(f"{value:g}")
    if isinstance(value, str):
        return [names[value]] if value in names else word_tokens(value)
    return [token for each in value for token in _value(each, names)]

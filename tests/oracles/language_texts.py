"""Read the decisions of a text back, from its tokens alone."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.language.choices import Choice, Decision
from tuner.language.vocabulary import END


def read_decisions(choices: Sequence[Choice], tokens: Sequence[str]) -> tuple[Decision, ...]:
    """Return the decisions of a text from behind `<decisions>` on.

    Args:
        choices: what each decision is chosen among.
        tokens: headers and decisions, up to `<end>`.

    Raises:
        ValueError: the tokens are no such text.
    """
    found: list[Decision] = []
    position = 0
    for choice in choices:
        header = choice.header
        if list(tokens[position : position + len(header)]) != header:
            raise ValueError(
                f"token {position} does not begin {' '.join(header)}; the text is of another sketch"
            )
        position += len(header)
        start = position
        while following := choice.next_tokens(tokens[start:position]):
            if position == len(tokens) or tokens[position] not in following:
                raise ValueError(f"token {position} is not one that may stand there")
            position += 1
        found.append(choice.read(tokens[start:position]))
    if list(tokens[position:]) != [END]:
        raise ValueError(f"the text goes on after its {len(choices)} decisions")
    return tuple(found)

"""Roles of a profile's rows in a language model: embedding, transformer layer, prediction, norm or head.

A role comes from the name: what holds `mtp` predicts several tokens; `norm`, `lm_head`, `wte` and their like
say what they are; what else has a number is a transformer layer, whatever its kind (`dense0`, `moe1`,
`mamba2`), as long as all of them can be one stack. One row that says nothing is the embedding where it
stands first, and the head where it stands last. Nothing is guessed beyond that, and nothing left out: a row
that cannot be placed is refused by name, and `--roles` states what it is. Checked in
tests/tessel/exports/test_roles.py.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from tessel.errors import ScheduleError, shown
from tessel.profiles.towers import TOWER


class Role(enum.StrEnum):
    """What a layer is in a language model: Megatron's letters, and `n` for the norm before the head."""

    EMBEDDING = "E"
    BLOCK = "t"
    PREDICTION = "m"
    NORM = "n"
    HEAD = "L"


STATE_ROLES = "say what each row is with --roles, such as Et*12nL, or name the rows so that it shows"

_WORDS = (
    (Role.PREDICTION, re.compile(r"mtp|nextn")),
    (Role.NORM, re.compile(r"norm|(?:^|_)ln(?:_|$)")),
    (Role.HEAD, re.compile(r"head|output|unembed|classifier|logits|loss")),
    (Role.EMBEDDING, re.compile(r"emb|^wte$|^wpe$")),
)
"""Words of the last part of a name, the first that matches; a number within the other parts makes it a piece
of a numbered layer."""

_STATED = re.compile(r"([EtmnL])(?:\*([0-9]{1,6}))?")
_NUMBER = re.compile(r"[0-9]+")


def roles_of(layers: Sequence[str]) -> tuple[Role, ...]:
    """Return what each layer is, by its name and place.

    Raises:
        ScheduleError: a name and its place do not say it, numbered layers are no single stack, or roles do
            not stand in a model's order; names the rows.
    """
    roles = [_role_by_name(layer) for layer in layers]
    blocks = [number for number, role in enumerate(roles) if role is Role.BLOCK]
    if blocks:
        _check_stack([layers[number] for number in blocks])
    first, last = (blocks[0], blocks[-1]) if blocks else (1, len(layers) - 2)
    for number, role in enumerate(roles):
        if role is None:
            roles[number] = _role_by_place(number, first, last, roles, has_blocks=bool(blocks))
            if roles[number] is None:
                raise ScheduleError(
                    f"row {number}, {shown(layers[number])!r}, is no embedding, transformer layer, norm or "
                    f"head by its name or place; {STATE_ROLES}"
                )
    found = tuple(role for role in roles if role is not None)
    _check_order(layers, found)
    return found


def stated_roles(text: str, layers: Sequence[str]) -> tuple[Role, ...]:
    """Return the roles of a text such as `Et*12mnL`, a letter for each layer.

    Raises:
        ScheduleError: it is no such text, has not a letter for each layer, or another order than a model's.
    """
    compact = "".join(text.split()).replace(",", "")
    runs = [(match[1], int(match[2] or 1)) for match in _STATED.finditer(compact)]
    if not compact or _STATED.sub("", compact):
        raise ScheduleError(
            f"{shown(text)!r} names no roles; write E for the embedding, t for a transformer layer, "
            f"m for one "
            "of multi-token prediction, n for the norm and L for the head, such as Et*12nL"
        )
    count = sum(times for _, times in runs)
    if count != len(layers):
        raise ScheduleError(
            f"{shown(text)!r} names the roles of {count} rows, and the plan has {len(layers)}; give each a "
            "letter"
        )
    roles = tuple(Role(letter) for letter, times in runs for _ in range(times))
    _check_order(layers, roles)
    return roles


def _role_by_name(layer: str) -> Role | None:
    *before, last = layer.lower().split(".")
    if any("mtp" in part or "nextn" in part for part in before):
        return Role.PREDICTION
    if not any(map(_NUMBER.fullmatch, before)):
        for role, words in _WORDS:
            if words.search(_NUMBER.sub("", last)):
                return role
    return Role.BLOCK if _NUMBER.search(layer) else None


def _role_by_place(
    number: int, first: int, last: int, roles: Sequence[Role | None], *, has_blocks: bool
) -> Role | None:
    """Return the role of a layer whose name says nothing; None where its place says nothing either."""
    if number == 0 and number < first and Role.EMBEDDING not in roles:
        return Role.EMBEDDING
    if number == len(roles) - 1 and number > last and Role.HEAD not in roles:
        return Role.HEAD
    return Role.BLOCK if not has_blocks and first <= number <= last else None


def _check_stack(layers: Sequence[str]) -> None:
    """Refuse numbered layers that are parts of one layer, or two stacks one behind the other.

    Raises:
        ScheduleError: they are; names two of them.
    """
    seen: dict[str, str] = {}
    for layer in layers:
        whole = layer[: list(_NUMBER.finditer(layer))[-1].end()]
        if whole in seen:
            raise ScheduleError(
                f"rows {shown(seen[whole])!r} and {shown(layer)!r} are parts of one layer, and "
                f"frameworks are "
                f"told whole ones; give the profile a row a layer, or {STATE_ROLES}"
            )
        seen[whole] = layer
    families = [_NUMBER.sub("#", layer) for layer in layers]
    towers = {bool(TOWER.search(family.lower())) for family in families}
    runs = [family for family, _ in groupby(families)]
    interleaved = len(runs) > len(set(runs))
    for (before, after), (layer, following) in zip(pairwise(families), pairwise(layers), strict=True):
        if before == after:
            restarts = _numbers(following) <= _numbers(layer)
        else:
            restarts = not interleaved and _numbers(following)[-1] <= _numbers(layer)[-1]
        if restarts:
            raise ScheduleError(
                f"{shown(following)!r} numbers anew after {shown(layer)!r}, so that these may be two models, "
                f"such as a tower and a language model; {STATE_ROLES}"
            )
    if len(towers) > 1:
        tower = next(layer for layer in layers if TOWER.search(layer.lower()))
        raise ScheduleError(
            f"row {shown(tower)!r} looks like one of another model in front of the language model, "
            f"which is no "
            f"transformer layer of its stack; {STATE_ROLES}"
        )


def _numbers(layer: str) -> tuple[int, ...]:
    return tuple(map(int, _NUMBER.findall(layer)))


def _check_order(layers: Sequence[str], roles: Sequence[Role]) -> None:
    """Refuse an embedding behind, or a norm or a head before, a transformer layer."""
    for (layer, role), (following, after) in pairwise(zip(layers, roles, strict=True)):
        if _rank(after) < _rank(role):
            raise ScheduleError(
                f"row {shown(following)!r} ({after.name.lower()}) stands behind {shown(layer)!r} "
                f"({role.name.lower()}), and a model has embedding, transformer layers, "
                f"predictions, norm and "
                f"head in this order; {STATE_ROLES}"
            )


def _rank(role: Role) -> int:
    # The norm stands before or behind layers of multi-token prediction.
    return {Role.EMBEDDING: 0, Role.BLOCK: 1, Role.PREDICTION: 2, Role.NORM: 2, Role.HEAD: 3}[role]


def rows_of(role: Role, layers: Sequence[str], stages: Sequence[Sequence[Role]]) -> Iterator[tuple[int, str]]:
    """Yield the stage and the name of each layer of a role."""
    names = iter(layers)
    for stage, roles in enumerate(stages):
        for each in roles:
            name = next(names)
            if each is role:
                yield stage, name

"""Identity that each rank must share with rank 0 before anything runs: the plan, the options, the versions.

A plan that was copied to one node and changed on another would give wrong results, or a rank that waits for
what is never sent. So every rank publishes digests of what it was told to run, and all of them refuse by the
same rule, which needs no judge. Checked in tests/tessel/engine/nodes/test_failure_cause.py.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from importlib import metadata

import msgspec

from tessel.engine.job import JobSpec

_DISTRIBUTIONS = ("tessel-tuner", "torch", "apache-tvm")
"""Whose versions decide what ranks compute and how they talk."""

_SHOWN = 12
"""Digits of a digest in a message."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank publishes about itself.

    Attributes:
        node: number of its node.
        address: its node's address, as it reaches the others.
        local_rank: its number on its node.
        versions: of each distribution that matters.
        plan_digest: of the file that it was given; empty until it has read it.
        options_digest: of what it was told to run beside the file: stages, schedules, repeats, seed.
    """

    rank: int
    node: int
    address: str
    local_rank: int
    versions: dict[str, str]
    plan_digest: str = ""
    options_digest: str = ""

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"node {self.node} ({self.address})"


def digest_of(content: bytes) -> str:
    """Return a digest that differs where contents do."""
    return hashlib.sha256(content).hexdigest()


def digest_of_job(job: JobSpec) -> str:
    """Return the digest of all that ranks are told."""
    return digest_of(msgspec.json.encode(job, order="sorted"))


def own_versions() -> dict[str, str]:
    """Return the versions of what this process runs; those that are not installed are left out."""
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def why_not(identities: Sequence[Identity]) -> str:
    """Return why these ranks cannot run together, in a sentence; empty text where they can.

    Args:
        identities: of all ranks, in their order; the first is what the others are compared with.
    """
    first = identities[0]
    for other in identities[1:]:
        who = f"rank {other.rank} on {other.place}"
        if other.versions != first.versions:
            return (
                f"{who} has {_differing(other.versions, first.versions)}, but rank 0 on {first.place} has "
                f"{_differing(first.versions, other.versions)}; install the same versions on every node"
            )
        if other.plan_digest != first.plan_digest:
            return (
                f"{who} was given another plan than rank 0 on {first.place} (digest "
                f"{other.plan_digest[:_SHOWN]} instead of {first.plan_digest[:_SHOWN]}); copy the same file "
                "to every node"
            )
        if other.options_digest != first.options_digest:
            return (
                f"{who} was started with other options than rank 0 on {first.place} (digest "
                f"{other.options_digest[:_SHOWN]} instead of {first.options_digest[:_SHOWN]}); give the same "
                "command on every node"
            )
    return ""


def _differing(own: dict[str, str], others: dict[str, str]) -> str:
    names = sorted({*own, *others})
    return ", ".join(
        f"{name} {own.get(name, 'missing')}" for name in names if own.get(name) != others.get(name)
    )

"""Result of a reader of profiles."""

from __future__ import annotations

from dataclasses import dataclass

from tessel.profiles.profile import Profile


@dataclass(frozen=True, slots=True)
class Reading:
    """A profile as it was read, and what its file leaves open.

    Attributes:
        profile: as it stands in the file.
        says_micro_batch: whether the file says how many samples a micro-batch has; the profile has 1 if not.
    """

    profile: Profile
    says_micro_batch: bool = True

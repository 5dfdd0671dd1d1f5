"""Stages of one's own for `tessel run`, those of `faulty_stages`, with no reference beside them."""

from __future__ import annotations

from faulty_stages import stages

__all__ = ["stages"]

"""Stages that run their forward again: what they keep, what they take, and which sets are chosen."""

from __future__ import annotations

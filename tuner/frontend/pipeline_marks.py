"""Marks in a torch module's own code: a pipeline stage ends after this sub-module.

A mark is an attribute of the sub-module, so it stays with it however deeply it is nested. Nothing here
imports torch. Checked in tests/tuner/stages/torch_modules/test_torch_stages.py.

Source: Slapo (Chen et al., ASPLOS 2024, section 3.3.2), whose primitive has this name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_MARK = "_ends_pipeline_stage"


def cut_pipeline_stage(module: torch.nn.Module) -> None:
    """Mark a sub-module, however deeply nested: a pipeline stage ends after it."""
    setattr(module, _MARK, True)


def marked_cuts(module: torch.nn.Module) -> tuple[str, ...]:
    """List the names of the sub-modules that `cut_pipeline_stage` marked, in order of definition."""
    return tuple(name for name, child in module.named_modules() if name and getattr(child, _MARK, False))

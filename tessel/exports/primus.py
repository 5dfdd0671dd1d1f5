"""A plan as the overrides of a Primus job that trains with Megatron-Core, in YAML.

Primus takes Megatron's arguments under their Python names, and one of its own: the layers to recompute, by
number, so that stages that recompute are those of the plan. Checked in
tests/tessel/exports/test_primus.py.

Source: Primus, `primus/configs` and docs of `recompute_layer_ids`.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

from tessel.exports.megatron_plan import megatron_arguments
from tessel.exports.recipe import Recipe
from tessel.exports.roles import Role

_NAMES = {"microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage"}
"""Of arguments whose Python name is another."""


def primus_overrides(recipe: Recipe) -> str:
    """Return the YAML of a job's `modules`, with what Megatron's order costs as comments.

    Raises:
        ScheduleError: Megatron cannot run the plan; see `megatron_arguments`.
    """
    text = megatron_arguments(replace(recipe, recompute=()))
    comments = [line.replace("Megatron-Core arguments", "Primus overrides") for line in text.splitlines()]
    options = dict(_option(line) for line in text.splitlines() if not line.startswith("#"))
    if any(recipe.recompute):
        options |= {
            "recompute_granularity": "full",
            "recompute_method": None,
            "recompute_layer_ids": _recomputed_layers(recipe),
        }
    left_out = ("# A release without layouts", "# Start it with")
    lines = [line for line in comments if line.startswith("#") and not line.startswith(left_out)]
    lines += ["modules:", "  pre_trainer:", "    framework: megatron", "    overrides:"]
    # JSON is YAML, and what a name holds stays a text.
    lines += [f"      {name}: {json.dumps(value)}" for name, value in options.items()]
    return "\n".join([*lines, ""])


def _option(line: str) -> tuple[str, object]:
    """Return the Python name and the value of one of Megatron's arguments; a flag is true."""
    name, *values = shlex.split(line)
    name = name.removeprefix("--").replace("-", "_")
    value: object = values[0] if values else True
    if values and values[0].isdecimal():
        value = int(values[0])
    return _NAMES.get(name, name), value


def _recomputed_layers(recipe: Recipe) -> list[int]:
    """Return the numbers of the transformer layers of stages that recompute."""
    found: list[int] = []
    number = 0
    for roles, recomputes in zip(recipe.roles_of_stages(), recipe.recompute, strict=True):
        count = roles.count(Role.BLOCK) + roles.count(Role.PREDICTION)
        found += range(number, number + count) if recomputes else []
        number += count
    return found

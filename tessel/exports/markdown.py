"""A recipe as Markdown, to paste into a pull request or an issue.

Tables of the settings and the stages, and the order of each rank where it is short enough to be read. Checked
in tests/tessel/exports/test_markdown.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessel.comparison import format_ms
from tessel.exports.markdown_text import escaped, table_lines
from tessel.exports.recipe import Recipe

MAX_ACTIONS = 40
"""Actions of a rank above which only the first ones are shown."""


def recipe_markdown(recipe: Recipe) -> str:
    """Return headings, tables and orders of a recipe."""
    parts = [
        f"## Pipeline of {escaped(recipe.model)}",
        "",
        *table_lines(("setting", "value"), _settings(recipe)),
        "",
        "### Stages",
        "",
        *table_lines(_columns(recipe), _stages(recipe)),
        "",
        "### Order of each rank",
        "",
        "```text",
        *(_order(rank, own) for rank, own in enumerate(recipe.actions)),
        "```",
        "",
    ]
    return "\n".join(parts)


def _settings(recipe: Recipe) -> list[tuple[str, str]]:
    rows = [
        ("ranks of a pipeline", str(recipe.devices)),
        ("stages", str(recipe.num_stages)),
        ("micro-batches", str(recipe.micro_batches)),
    ]
    if recipe.copies > 1:
        rows.append(("pipelines on the same ranks", str(recipe.copies)))
    if recipe.micro_batch is not None:
        rows.append(("samples of a micro-batch", str(recipe.micro_batch)))
        batch = recipe.micro_batch * recipe.micro_batches * recipe.copies * recipe.data_parallel
        rows.append(("global batch", str(batch)))
    rows += [
        ("data parallel", str(recipe.data_parallel)),
        ("tensor parallel", recipe.stage_degrees or str(recipe.tensor_parallel)),
        *_further_degrees(recipe),
        ("backward", "split where it helps" if recipe.has_split_backward else "joint"),
    ]
    schedule = recipe.schedule
    if recipe.step_us is not None:
        rows.append(("pipeline", f"{format_ms(schedule.makespan * recipe.step_us / 1000)} ms"))
    else:
        rows.append(("makespan", f"{schedule.makespan} steps"))
    if recipe.training_step_us is not None:
        rows.append(("training step", f"{format_ms(recipe.training_step_us / 1000)} ms"))
    rows.append(("bubble ratio", f"{schedule.bubble_ratio:.1%}"))
    return rows


def _further_degrees(recipe: Recipe) -> list[tuple[str, str]]:
    """Return what not every plan has: further degrees, and how training state is held."""
    rows = (
        ("context parallel", recipe.context_parallel),
        ("expert parallel", recipe.expert_parallel),
        ("divided over replicas", recipe.sharding),
        ("in the memory of hosts", recipe.offload),
    )
    return [(name, str(value)) for name, value in rows if value not in (1, "none")]


def _columns(recipe: Recipe) -> tuple[str, ...]:
    devices = ("devices",) if recipe.rank_devices else ()
    return ("stage", "rank", *devices, "layers", "recomputes")


def _stages(recipe: Recipe) -> list[tuple[str, ...]]:
    rows = []
    for stage, rank in enumerate(recipe.device_of_stage):
        layers = recipe.layers_of(stage) if recipe.cuts else ()
        ends = " … ".join(dict.fromkeys((layers[0], layers[-1]))) if layers else "–"
        count = f" ({len(layers)})" if len(layers) > 1 else ""
        recomputes = "yes" if recipe.recompute and recipe.recompute[stage] else "no"
        devices = (", ".join(map(str, recipe.rank_devices[rank])),) if recipe.rank_devices else ()
        rows.append((str(stage), str(rank), *devices, f"{ends}{count}", recomputes))
    return rows


def _order(rank: int, own: Sequence[object]) -> str:
    shown = [str(action) for action in own[:MAX_ACTIONS]]
    more = len(own) - len(shown)
    return f"rank {rank}: {' '.join(shown)}" + (f" … and {more} more" if more else "")

"""Draw docs/images/overview.svg: a table of timings, the plan found from it, and what proves it.

    python .ci/draw_overview.py        plans examples/profiles/eight_layers.csv first, half a minute or two

The figures are those of `tessel plan` on the example; the search is bounded by work, so every machine finds
the same.
"""

import subprocess
import sys
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tessel.picture.captions import DescribedFigure, save_figure
from tessel.picture.colors import COLOR_BY_KIND
from tessel.picture.draw import draw_schedule
from tessel.picture.figures import add_legend
from tessel.placement import BlockKind
from tessel.planning.saved_plan import SavedPlan, load_saved_plan

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "overview.svg"
NARROW = PICTURE.with_stem("overview_narrow")
"""Its parts below one another, for a telephone: 400 pixels wide."""
PROFILE = ROOT / "examples" / "profiles" / "eight_layers.csv"
PLAN = ROOT / "out" / "overview" / "plan.json"
OPTIONS = ["--devices", "4", "--memory", "16GiB", "--global-batch", "16", "--work", "2"]
SHOWN = ("layer", "forward_ms", "backward_ms", "weights_mib", "saved_mib")
BASELINES = {
    "zb-h2": "ZB-H2",
    "dualpipe-v": "DualPipe-V",
    "zb-v": "ZB-V",
    "eager-1f1b": "eager 1F1B",
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "data-parallel": "data parallel",
}


def main() -> None:
    """Plan, and draw what was found."""
    PLAN.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "scripts",
        "plan",
        str(PROFILE),
        *OPTIONS,
        "--save",
        str(PLAN),
        "--quiet",
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    plan = load_saved_plan(PLAN)
    for picture, is_narrow in ((PICTURE, False), (NARROW, True)):
        save_figure(overview(plan, is_narrow=is_narrow), picture)
        print(f"{picture.relative_to(ROOT)} written")


def overview(plan: SavedPlan, *, is_narrow: bool = False) -> DescribedFigure:
    """Return the picture: the table at the left, the plan above its proof at the right; or all stacked."""
    with matplotlib.rc_context({"font.size": 9.0}):
        figure = DescribedFigure(figsize=(4.2, 8.4) if is_narrow else (11.0, 4.6), layout="constrained")
        FigureCanvasAgg(figure)
        if is_narrow:
            axes = figure.subplot_mosaic([["table"], ["plan"], ["proof"]], height_ratios=[3, 1.6, 2.4])
        else:
            axes = figure.subplot_mosaic([["table", "plan"], ["table", "proof"]], width_ratios=[1, 2.1])
        draw_table(axes["table"])
        draw_schedule(
            plan.schedule, axes["plan"], step_ms=plan.step_us / 1000, device_names=plan.device_names
        )
        what = "" if is_narrow else ": which device runs which layer of which micro-batch, and when"
        axes["plan"].set_title(f"2  The plan{what}", loc="left")
        draw_proof(plan, axes["proof"], is_narrow=is_narrow)
        add_legend(figure, [axes["plan"]])
    figure.title = "From a table of timings to a plan and its proof"
    step, bound = plan.training_step_us / 1000, plan.lower_bound_us / 1000
    figure.description = (
        f"Left, a table of eight layers with their times and sizes. Right, the plan found for four devices, "
        f"{step:.1f} ms per step, as a timeline; below it, bars of hand-written schedules' steps, each with "
        f"its own best cut, and a line at {bound:.1f} ms, a proven lower bound for every allowed plan."
    )
    return figure


def draw_table(axes: Axes) -> None:
    """Write the profile as the table it is."""
    lines = [line for line in PROFILE.read_text().splitlines() if not line.startswith("#")]
    header, *rows = (line.split(",") for line in lines)
    columns = [header.index(name) for name in SHOWN]
    table = axes.table(
        [[row[column] for column in columns] for row in rows],
        colLabels=[name.replace("_", "\n") for name in SHOWN],
        loc="upper center",
        cellLoc="right",
        edges="horizontal",
    )
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    table.scale(1, 1.55)
    for column in range(len(SHOWN)):
        table[0, column].set_height(1.7 * table[1, column].get_height())
    axes.set_axis_off()
    axes.set_title("1  A table of timings", loc="left")


def draw_proof(plan: SavedPlan, axes: Axes, *, is_narrow: bool) -> None:
    """Draw the step of the plan and of each baseline, and the bound."""
    taken = {baseline.name: baseline.step_ms for baseline in plan.baselines}
    bars = [("this plan", plan.training_step_us / 1000)]
    bars += [(title, step) for name, title in BASELINES.items() if (step := taken[name]) is not None]
    drawn = axes.barh(range(len(bars)), [step for _, step in bars], height=0.7)
    for number, bar in enumerate(drawn):
        bar.set_facecolor(COLOR_BY_KIND[BlockKind.FORWARD] if number == 0 else "#BBBBBB")
    axes.bar_label(drawn, [f"{step:.1f} ms" for _, step in bars], padding=3, fontsize=8)
    bound = plan.lower_bound_us / 1000
    axes.axvline(bound, color="black", linestyle="--", linewidth=1)
    axes.text(
        bound - 2,
        -0.85,
        f"proven lower bound for every plan: {bound:.1f} ms",
        ha="right",
        va="center",
        fontsize=8,
    )
    axes.set_yticks(range(len(bars)), [title for title, _ in bars])
    axes.set_ylim(len(bars) - 0.4, -1.2)
    axes.margins(x=0.12)
    how = "" if is_narrow else ", each with its own best cut under the same memory limit"
    axes.set_xlabel(f"training step (ms, simulated){how}")
    what = "" if is_narrow else ": hand-written schedules, and a proven lower bound"
    axes.set_title(f"3  Evidence{what}", loc="left")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)


if __name__ == "__main__":
    main()

"""Tables of layers, and profiles of other tools."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from benchmarks.fuzz import mutation
from benchmarks.fuzz.campaign import Files, Format
from benchmarks.fuzz.formats.changes import ROOT, TEXT_COUNT, change_by_suffix
from benchmarks.fuzz.formats.exported import export_all
from benchmarks.fuzz.formats.schedules import scheduler_errors


def profile_table_format() -> Format:
    def read(folder: Path) -> None:
        from tessel.profiles import load_profile

        name = "table.json" if (folder / "table.json").exists() else "table.csv"
        _convert_profile(load_profile(folder / name), folder)

    table = (ROOT / "examples" / "profiles" / "eight_layers.csv").read_bytes()
    document = {
        "schema_version": 1,
        "model": "two layers",
        "layers": [
            {
                "layer": f"layer{index}",
                "forward_ms": 1.5,
                "backward_ms": 3,
                "weights_mib": 300,
                "saved_mib": 20,
                "boundary_mib": 16,
                "tie": "shared",
                "micro_batch": 2,
            }
            for index in range(2)
        ],
    }
    return Format(
        name="profile-table",
        count=TEXT_COUNT,
        samples=lambda: [{"table.csv": table}, {"table.json": json.dumps(document).encode()}],
        change=change_by_suffix(csv=mutation.changed_table, json=mutation.changed_text_file),
        read=read,
        own_errors=scheduler_errors(),
    )


def _convert_profile(profile: Any, folder: Path) -> None:
    """Write a profile as the table, and export a plan of it that needs no search.

    Raises:
        AssertionError: a name from the file is more than text in what was written.
    """
    from tessel.profiles import load_profile, save_table

    save_table(profile, folder / "written.csv")
    again = load_profile(folder / "written.csv")
    names = [(layer.name.strip(), layer.tie.strip()) for layer in profile.layers]
    assert [(layer.name, layer.tie) for layer in again.layers] == names, "the table holds other layers"
    export_all(_recipe_of_profile(profile))


def _recipe_of_profile(profile: Any) -> Any:
    """Return what frameworks are told of a profile cut in the middle, in an order written by hand."""
    from tessel.engine.actions import actions_of
    from tessel.exports.recipe import Recipe
    from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
    from tessel.shapes import make_shape

    layers = tuple(layer.name for layer in profile.layers)
    stages = min(2, len(layers))
    ends = [len(layers) * stage // stages for stage in range(stages + 1)]
    schedule = ONE_F_ONE_B.build(make_shape("vshape", stages), micro_batches=2)
    return Recipe(
        model=profile.name,
        layers=layers,
        cuts=tuple((first, end - 1) for first, end in itertools.pairwise(ends)),
        device_of_stage=tuple(range(stages)),
        actions=actions_of(schedule),
        schedule=schedule,
        micro_batches=2,
    )


def profile_of_others_format() -> Format:
    files = (
        "sailor/OPT-350/A100-40/profile.json",
        "aceso/A100-40/fp16/GPT-Neo-2.7_mbs1_tp1_algo0.csv",
        "metis/DeviceType.X100_tp1_bs1.json",
        "pipedream/gnmt/graph.txt",
        "neusight/H100/gpt2_large-train-1024-1.csv",
    )
    extracts = ROOT / "tests" / "benchmarks" / "profile_readers" / "extracts"

    def read(folder: Path) -> None:
        from benchmarks.profile_readers.load import load

        for file in files:
            if (folder / Path(file).name).exists():
                _convert_profile(load(folder / Path(file).name), folder)

    def samples() -> list[Files]:
        found = [{Path(file).name: (extracts / file).read_bytes()} for file in files]
        found[-1]["gpt2_large-train-1024-1.json"] = b'{"num_layer": 36, "fw_latency": 63.6}'
        return [*found]

    return Format(
        name="profile-of-others",
        count=TEXT_COUNT,
        samples=samples,
        change=change_by_suffix(
            json=mutation.changed_text_file, csv=mutation.changed_table, txt=mutation.changed_text_file
        ),
        read=read,
        own_errors=scheduler_errors(),
    )

"""Run Sailor's own simulator on its own runs: `python -m benchmarks.reality.sailor_simulator CLONE`.

Prints seconds and bytes by run as JSON, for `python -m benchmarks.reality sailor --clone`. The simulator is
the clone's, called as its `simulations/validation/validate.py` calls it, with the files that its scripts
name: `profiles_tmp.json`, `llm_info.json`, `training_config_*.json`. It needs numpy and torch, and its
package under the name that its imports have (CLONE on the path).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.reality.sailor_data import PLANNER, run_name

PIPELINE_KEYS = ("num_stages", "layers_per_stage", "tmp_per_stage", "dp")


def simulate(clone: Path) -> dict[str, tuple[float, float]]:
    """Return seconds of a step, and bytes of the GPU that needs most, by name of run."""
    sys.path.insert(0, str(clone))
    simulator = importlib.import_module("sailor.Planner.simulations.runtime_simulator").Simulator
    planner = clone / PLANNER
    sizes = json.loads((planner / "llm_info.json").read_text())
    profiles = json.loads((planner / "simulations/profiles_tmp.json").read_text())
    folder = planner / "simulations/validation"
    found = {}
    for path in sorted(folder.rglob("plan_config_*.json")):
        document = json.loads(path.read_text())
        model = "gpt_neo27" if "GPT-NEO" in str(path) else "opt_350"
        config = json.loads((planner / f"simulations/configs/training_config_{model}.json").read_text())
        config["global_batch_size"] = document["gbs"]
        with contextlib.redirect_stdout(io.StringIO()):  # it prints each of its terms
            # It looks for its files in PARENT/sailor/sailor, so the clone has to be named `sailor`.
            rival = simulator(str(clone.parent), config, sizes, False, profiles, document["zone"])
            found[run_name(path.relative_to(folder))] = _simulate(rival, document)
    return found


def _simulate(rival: Any, document: dict[str, Any]) -> tuple[float, float]:  # the rival is untyped
    pipeline = {key: document["pipeline_list"][0][key] for key in PIPELINE_KEYS}
    plan = {"pipeline_list": [pipeline], "mbs": document["mbs"]}
    seconds = float(rival.simulate_iteration_time(plan)[0])
    num_bytes = max(
        float(rival.get_memory_footprint_on_gpu(plan, stage, group[1]))
        for stage, groups in enumerate(pipeline["tmp_per_stage"])
        for group in groups
    )
    return seconds, num_bytes


if __name__ == "__main__":
    print(json.dumps(simulate(Path(sys.argv[1]).resolve()), indent=1))

"""Files that the tests of options read: records, a plan, a schedule, a placement, orders and a profile."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tuned_model import tuned_model

from records import Status, open_store
from scripts.main import main
from scripts.terminal import console
from tessel.documents import load_schedule
from tessel.pipeline import build_plan
from tessel.progress import messages
from tessel.tuned_plan import save_plan
from tests.records.strategies import make_environment, make_measurement, make_workload
from tests.samples.batches.trace_samples import Job, rows_of


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("options")
    for name, backends in (("records.db", ("tvm", "blas")), ("other.db", ("blas", "torch"))):
        with open_store(str(folder / name)) as store:
            # Numbers without common factors, so that each filter of a list leaves out what no other does.
            for index in range(1, 25):
                workload = make_workload(len(name), role="stage" if index % 2 else "kernel")
                measurement = make_measurement(
                    workload,
                    backend=backends[index % 5 == 0],
                    status=Status.OK if index % 3 else Status.ERROR,
                    environment=make_environment(num_threads=len(name)),
                    seed=index,
                )
                store.append(workload, measurement)
    command = f"records export {folder}/exported.jsonl --records {folder}/records.db --quiet"
    assert main(command.split()) == 0

    plan = build_plan(
        tuned_model([(10.0, 21.0, 11.0, 12.0), (13.0, 27.0, 14.0, 15.0)]),
        micro_batches=2,
        memory_limit_bytes=None,
        time_limit_s=1.0,
    )
    save_plan(plan, folder / "plan.json")
    schedule = f"schedule vshape --devices 2 --micro-batches 2 --save {folder}/schedule.json --quiet"
    assert main(schedule.split()) == 0

    placement = load_schedule(folder / "schedule.json").placement
    (folder / "placement.json").write_text(console.json_text(placement, "utf-8"))
    orders = f"run {folder}/schedule.json --csv {folder}/orders.csv --quiet"
    assert main(orders.split()) == 0
    (folder / "pairs.csv").write_text("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n")
    rows = [
        f"{name},{','.join(map(str, degrees))},1,2,1,1,10,10,1"
        for degrees in itertools.product((1, 2), repeat=4)
        for name in ("embed", "block0", "block1", "head")
    ]
    degrees = "micro_batch,tensor_parallel,context_parallel,expert_parallel"
    columns = "forward_ms,backward_ms,backward_input_ms,backward_weight_ms"
    (folder / "profile.csv").write_text(
        "\n".join([f"layer,{degrees},{columns},weights_mib,saved_mib,boundary_mib", *rows, ""])
    )
    shape = "--devices 2 --pipeline 2 --placement vshape --joint-backward --micro-batches 4"
    planned = f"plan {folder}/profile.csv {shape}"
    assert main([*planned.split(), "--save", f"{folder}/language.json", "--quiet"]) == 0
    (folder / "style.json").write_text(
        '{"schema_version": 1, "annotation_args": {"fontsize": 6}, "line_args": {"color": "red"}}'
    )
    for name in ("steps", "other_steps"):
        (folder / f"{name}.csv").write_text("\n".join(rows_of(Job(stages=len(name) // 5 + 1))))
    for name, factor in (("chunks", 1), ("other_chunks", 2)):
        rows = [f"{tokens},{factor * (100 + tokens**2 / 9 + 8 * tokens):g}" for tokens in (256, 512, 1024)]
        (folder / f"{name}.csv").write_text("\n".join(["tokens,time_us", *rows]))
    (folder / "networks.json").write_text('{"net": ["abc"]}')
    messages.set_verbosity(quiet=False, verbose=False)
    return folder

"""What `--cost-model` names prices kernels and stages, whatever the records could teach."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_physics import many_records, stage_records

from cost_model.dataset import load_dataset
from cost_model.kernel_training import train_kernel_model
from cost_model.stage_model import load_stages, train_stage_model
from scripts.options.tuning_options import TuningOptions, open_session
from tests.samples.known_speed import keep_made_up_speed
from tuner.frontend import load_model
from tuner.tuning.partitioned_function import choose_partition, price_function
from tuner.tuning.stage_costs.stage_pricing import predict_stage

pytestmark = pytest.mark.tvm

FACTOR = 3.0
"""How much longer than its parts a stage takes by the model that is given; no real one does."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel model and, in `with_stages` alone, a stage model beside it."""
    made = tmp_path_factory.mktemp("models")
    kernels = train_kernel_model(load_dataset(many_records(40)), calibrated=False)
    for name in ("with_stages", "without"):
        kernels.save(made / name)
    train_stage_model(load_stages(stage_records(40, factor=FACTOR))).save(made / "with_stages")
    return made


@pytest.mark.parametrize(("name", "factor"), [("with_stages", FACTOR), ("without", 1.0)])
def test_a_given_stage_model_prices_the_stages(
    folder: Path, tmp_path: Path, name: str, factor: float
) -> None:
    url = str(tmp_path / "records.db")
    keep_made_up_speed(url)
    options = TuningOptions(
        records=url,
        backends="tvm,blas",
        threads=1,
        price="model",
        cost_model=folder / name,
    )
    with open_session(options) as session:
        module = load_model("mlp:tiny", batch=2).module
        function = choose_partition(price_function(session, module, name="whole", launch_penalty_us=1.0))
        found = predict_stage(session, function)
        assert session.measurer.new_measurements == 0
    assert found.source == "predicted"
    # The parts' sum has a launch each, which is what the stage model adds to their latencies as well.
    assert found.latency_us / function.sum_of_parts.latency_us == pytest.approx(factor, rel=0.15)

from cost_model import device_speed
from records import Environment, open_store
from tuner.device_probe import ensure_probed
from tuner.target import Target

TARGET = Target(name="cpu", kind="cpu", tvm_json='{"kind":"llvm"}', num_threads=1)
ENVIRONMENT = Environment(
    device_kind="cpu", device_model="test", num_cores=1, num_threads=1, driver="test", versions=()
)


def test_probes_are_measured_once_and_give_a_speed(tmp_path) -> None:
    with open_store(f"sqlite:///{tmp_path}/records.db") as store:
        assert ensure_probed(store, target=TARGET, environment=ENVIRONMENT) == 3
        assert ensure_probed(store, target=TARGET, environment=ENVIRONMENT) == 0

        speed = device_speed(record.measurement for record in store.iterate(role="device"))

    # Any processor of the last decade lies within these.
    assert 1 < speed.peak_gflops < 10_000
    assert 0.5 < speed.bandwidth_gb_s < 5_000
    assert 0 < speed.call_us < 100

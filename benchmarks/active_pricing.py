"""What measuring only where the decision needs it finds, against measuring everything, on a new network.

    python -m benchmarks.active_pricing --records out/training.db --networks out/networks.json \
        --models bert:tiny gpt2:tiny mobilenet:tiny

For each model, the training records without anything that its network runs are copied twice. One copy is
completed by `--price measured`, the other by `--price active`, which trains on it. Both partitions are then
priced by the full measurements, and measured end to end. Each line gives programs measured, the cost of both
partitions, and the share that `active` leaves on the table.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from records import open_store
from tuner.frontend import load_model
from tuner.measuring.launch_penalty import measure_launch_penalty
from tuner.pricing.protocol import PriceMode, Pricing
from tuner.tuning.end_to_end.measurement import measure_partitioned
from tuner.tuning.partitioned_function import PartitionedFunction, choose_partition, of_parts, price_function
from tuner.tuning.session import Session, SessionSettings, start_session


def copy_without(source: str, target: Path, left_out: frozenset[str]) -> int:
    """Copy the records of other workloads than those; return how many."""
    with open_store(source) as old, open_store(str(target)) as new:
        kept = (
            (record.workload, record.measurement)
            for record in old.iterate()
            if record.workload.fingerprint not in left_out
        )
        return len(new.append_many(kept))


def session_of(path: Path, mode: PriceMode, arguments: argparse.Namespace) -> AbstractContextManager[Session]:
    return start_session(
        "cpu",
        SessionSettings(backend_names=arguments.backends, num_threads=arguments.threads),
        records_url=str(path),
        pricing=Pricing(mode=mode),
    )


def partition(session: Session, name: str, batch: int, penalty_us: float) -> tuple[PartitionedFunction, int]:
    """Return the partition and how many programs were measured for it."""
    before = session.measurer.new_measurements
    model = load_model(name, batch=batch, training=False)
    found = choose_partition(price_function(session, model.module, name=name, launch_penalty_us=penalty_us))
    return found, session.measurer.new_measurements - before


def compare(name: str, networks: dict[str, list[str]], folder: Path, arguments: argparse.Namespace) -> str:
    family = name.partition(":")[0]
    left_out = frozenset(
        fingerprint
        for network, fingerprints in networks.items()
        if network.partition(":")[0] == family
        for fingerprint in fingerprints
    )
    paths = [folder / f"{name.replace(':', '-')}-{mode}.db" for mode in ("measured", "active")]
    num_records, _ = (copy_without(arguments.records, path, left_out) for path in paths)
    with session_of(paths[1], "active", arguments) as session:
        penalty_us = measure_launch_penalty(session.measurer).latency_us
        active, num_active = partition(session, name, arguments.batch, penalty_us)
    with session_of(paths[0], "measured", arguments) as session:
        measured, num_measured = partition(session, name, arguments.batch, penalty_us)
        # The same candidates at the prices of the full measurement.
        price_by_candidate = dict(zip(measured.priced.candidates, measured.priced.prices, strict=True))
        missing = [part for part in active.partition.chosen if part not in price_by_candidate]
        assert not missing, "both runs have the same candidates"
        repriced = of_parts(measured.priced, active.partition.chosen)
        best_us, found_us = measured.partition.cost_us, repriced.partition.cost_us
        ends_us = [measure_partitioned(session, each).latency_us for each in (measured, repriced)]
    return (
        f"| {name} | {arguments.batch} | {num_records} | {num_measured} | {num_active} "
        f"| {num_active / max(num_measured, 1):.0%} | {best_us / 1e3:.3f} ms | {found_us / best_us - 1:+.1%} "
        f"| {ends_us[0] / 1e3:.3f} ms | {ends_us[1] / ends_us[0] - 1:+.1%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", required=True)
    parser.add_argument("--networks", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["bert:tiny"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--backends", nargs="+", help="those of the records; all of this machine if left out")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    networks = msgspec.json.decode(arguments.networks.read_bytes(), type=dict[str, list[str]])
    print(
        "| model | batch | records before | measured all | measured by `active` | share | cost of the best "
        "| cost of what `active` found | end to end | end to end of `active` |\n" + "|---" * 10 + "|",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models:
            print(compare(name, networks, Path(folder), arguments), flush=True)


if __name__ == "__main__":
    main()

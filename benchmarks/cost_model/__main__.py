"""How well the cost model predicts what it has not seen, and what it costs to train and to ask.

    tessel records collect --threads 1 --records out/training.db --save-networks out/networks.json
    tessel records collect --threads 1 --records out/again.db --max-samples 200 --seed 1
    python -m benchmarks.cost_model --records out/training.db --networks out/networks.json \
        --again out/again.db

Prints, as Markdown: what the records hold; figures on held-out workloads, shapes, combinations of operators
and networks, and where the errors are; how far stages are from the sum of their parts; the noise floor, from
keys that `--again` measured a second time; what the figures become without the roofline and without each
group of features; and the time of training and of predictions. `--few-only` prints what models of 500 records
give instead. Without `--records` the small fixed sample of the tests is used.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.cost_model.data import COUNTED_US, SPLITS, load, load_sample, summary
from benchmarks.cost_model.experiments import ablations, noise_floor, speed, stage_table
from benchmarks.cost_model.few_records import NUM_RECORDS, few_records_table
from benchmarks.cost_model.tables import (
    errors_by_group,
    errors_by_kind,
    network_table,
    sizes_of_combinations,
    split_table,
    verdicts,
)
from cost_model.dataset import Dataset, network_groups
from cost_model.evaluation import figures_of, folds_by_split, predict_held_out


def print_splits(
    dataset: Dataset, networks: Mapping[str, Sequence[str]] | None, splits: Sequence[str], seed: int
) -> None:
    folds = folds_by_split(dataset, networks=networks, seed=seed)
    figures = {}
    for split in splits:
        if split not in folds:
            continue
        held_out = predict_held_out(dataset, folds[split], seed=seed)
        counted = (folds[split] >= 0) & (dataset.latencies_us >= COUNTED_US)
        figures[split] = figures_of(dataset, held_out, counted=counted)
        if split == "network" and networks:
            groups, title = network_groups(dataset, networks), "network"
        else:
            groups, title = sizes_of_combinations(dataset), "operators"
        print(f"### Unseen {split}s\n\n{split_table({split: figures[split]})}\n")
        print(errors_by_group(dataset, held_out, counted, title, groups) + "\n")
        print(errors_by_kind(dataset, held_out, counted) + "\n", flush=True)
    print("### All splits\n\n" + split_table(figures) + "\n\n" + verdicts(figures) + "\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", help="the training set; the tests' sample if left out")
    parser.add_argument("--networks", type=Path, help="JSON of network -> fingerprints")
    parser.add_argument("--again", help="records of a second measurement of some keys")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--splits", nargs="+", choices=SPLITS, default=SPLITS, help="what is held out in turn"
    )
    parser.add_argument(
        "--few-only", action="store_true", help=f"only what models of {NUM_RECORDS} records give"
    )
    parser.add_argument("--splits-only", action="store_true")
    parser.add_argument("--no-ablations", action="store_true")
    parser.add_argument("--ablations-only", action="store_true")
    arguments = parser.parse_args()
    dataset = load(arguments.records) if arguments.records else load_sample()
    networks = None
    if arguments.networks:
        networks = msgspec.json.decode(arguments.networks.read_bytes(), type=dict[str, list[str]])
    if arguments.few_only:
        print(
            "### Few records\n\n" + few_records_table(dataset, networks=networks, seed=arguments.seed) + "\n"
        )
        return
    if arguments.ablations_only:
        print("### Ablations\n\n" + ablations(dataset, networks, arguments.seed) + "\n")
        return
    if not arguments.splits_only:
        print("### Data\n\n" + summary(dataset) + "\n", flush=True)
        if networks:
            print(network_table(dataset, networks) + "\n")
        if arguments.again:
            print("### Noise floor\n\n" + noise_floor(dataset, load(arguments.again)) + "\n")
    print_splits(dataset, networks, arguments.splits, arguments.seed)
    if arguments.splits_only:
        return
    if arguments.records:
        print("### Stages\n\n" + stage_table(arguments.records, arguments.seed) + "\n", flush=True)
    print("### Speed\n\n" + speed(dataset, arguments.seed) + "\n", flush=True)
    if not arguments.no_ablations:
        print("### Ablations\n\n" + ablations(dataset, networks, arguments.seed) + "\n")


if __name__ == "__main__":
    main()

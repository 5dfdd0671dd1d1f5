"""Is a kernel's latency known on a GPU that nobody here has? On what NeuSight's authors measured.

`python -m benchmarks.gpu_cost_model FOLDER` trains the project's GPU model on the kernels of five devices
(P4, P100, V100, T4, A100 of 40 GB), predicts the operators of networks on those and on H100, L4 and A100 of
80 GB, and sets it beside what four systems predicted for the same runs, all errors computed here. FOLDER is
sitar-lab/NeuSight's repository. A run's error in a column is that of the sum of its operators of that kind.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_cost_model.cut_regret import print_regret
from benchmarks.gpu_cost_model.kernel_errors import print_families, print_kernels
from benchmarks.gpu_cost_model.network_errors import print_networks
from benchmarks.gpu_cost_model.programs import print_programs
from benchmarks.gpu_cost_model.samples import read_samples
from cost_model.gpu.training import train_gpu_model


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_cost_model", description=__doc__)
    parser.add_argument("folder", type=Path, help="sitar-lab/NeuSight's repository")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="folder to save the model to")
    options = parser.parse_args(arguments)
    root = options.folder / "scripts/asplos"
    started = time.process_time()
    samples = list(read_samples(sorted((root / "data/dataset/train/collect").glob("*/*/*.csv"))))
    model = train_gpu_model(samples, seed=options.seed)
    print(
        f"trained on {model.manifest.num_samples} kernels in {time.process_time() - started:.0f} s",
        file=sys.stderr,
    )
    if options.model is not None:
        model.save(options.model)
    print_families(model)
    print_networks(root, model)
    print_regret(root, model)
    print_kernels(root, model)
    print_programs(root, model)


if __name__ == "__main__":
    main()

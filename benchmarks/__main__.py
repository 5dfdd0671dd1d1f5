"""Run every benchmark in turn, each briefly: `python -m benchmarks`; name some to run only those.

Each prints its tables; full lengths are its own options (`python -m benchmarks.NAME --help`).
"""

from __future__ import annotations

import subprocess
import sys

BRIEF = {
    "schedule_search.determinism": ["--runs", "3", "--loads", "0", "4"],
    "schedule_search.period": ["--repeats", "3", "--cpsat-seconds", "2"],
    "schedule_search.makespan": ["--seconds", "2"],
    "schedule_search.time_limits": ["--limits", "0.5", "--cases", "0", "2"],
    "schedule_search.first_call": ["--repeats", "1"],
    "random_placements": ["--count", "3", "--seconds", "1", "--cpsat-seconds", "3"],
    "unequal_batches": ["--count", "2", "--work", "0.2", "--seconds", "1"],
    "small_schedules": ["--count", "13", "--seconds", "1", "--cpsat-seconds", "1"],
    "partition_search": ["--repeats", "1"],
    "architectures": ["gpt2", "bert-mask", "unet"],
    "converter_fuzz": ["add", "cumsum", "std", "--samples", "2", "--types", "float32,int64"],
    "networks": ["squeezenet", "--backends", "tvm,torch", "--repeats", "3", "--seconds", "2"],
    "records_scale": ["--records", "20000"],
    "cost_model": ["--no-ablations"],
    "planner": ["--devices", "4", "--memory", "1.02", "--work", "0.3"],
    "reality": ["sailor"],
    "simulator": ["--ranks", "2", "--ms", "10", "--micro-batches", "4", "--repeats", "2"],
}


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(BRIEF))
    if unknown:
        print(f"there is no benchmark {unknown[0]}; choose {', '.join(BRIEF)}", file=sys.stderr)
        return 2
    failed = []
    for name in names or BRIEF:
        print(f"== {name}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *BRIEF[name]], check=False)
        if done.returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

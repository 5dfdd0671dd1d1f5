"""A pipeline schedule of one's own in fifteen lines: what each device does, in order; the rest follows.

Run it: `python examples/custom_schedule.py`. It is 1F1B in pairs: two forwards, then two backwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from tessel.dag import dag_of_pipeline
from tessel.instruction import Backward, Forward, Instruction, PipelineSchedule


class PairedSchedule(PipelineSchedule):
    """Two forwards, two backwards, after a warm-up of two micro-batches for each stage that follows."""

    def instructions(self, device: int) -> Iterator[Instruction]:
        warm_up = min(2 * (self.num_stages - device), self.num_micro_batches)
        for micro_batch in range(warm_up):
            yield Forward(device, micro_batch)
        for first in range(0, self.num_micro_batches, 2):
            pair = range(first, min(first + 2, self.num_micro_batches))
            for micro_batch in pair:
                yield Backward(device, micro_batch)
            for micro_batch in pair:
                if micro_batch + warm_up < self.num_micro_batches:
                    yield Forward(device, micro_batch + warm_up)


def main() -> None:
    pipeline = PairedSchedule(num_stages=4, num_micro_batches=8, durations={Forward: 1, Backward: 2})
    dag = dag_of_pipeline(pipeline)
    schedule = dag.to_schedule("eager")
    names = [
        f"{schedule.placement.blocks[task.block_index].name}[{task.micro_batch}]"
        for task in dag.critical_path()
    ]
    print(f"makespan {schedule.makespan}, bubbles {schedule.bubble_ratio:.1%}, peak {schedule.peak_memory}")
    print(f"{sum(slack > 0 for slack in dag.slack)} of {len(dag.tasks)} tasks have slack")
    print("critical path:", " ".join(names))


if __name__ == "__main__":
    main()

"""A small interpreter of DeepSpeed's instructions runs what is exported: nothing waits for ever, nothing
mixes.

It keeps what DeepSpeed's engine keeps (buffers, one incoming gradient, one loss, one sequence of
micro-batches) and takes the streams from the file that a job would import.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import draw_schedule

from tessel.errors import ScheduleError
from tessel.exports.deepspeed import deepspeed_module, instruction_streams, parts_of
from tessel.exports.recipe import Recipe, recipe_of_schedule
from tessel.handwritten import HANDWRITTEN
from tessel.handwritten.gpipe import GPIPE
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.schedule import Schedule
from tessel.shapes import interleaved, make_shape, vshape

NAMES = ("LoadMicroBatch", "ForwardPass", "BackwardPass", "SendActivation", "RecvActivation", "SendGrad")
NAMES += ("RecvGrad", "ReduceTiedGrads", "ReduceGrads", "OptimizerStep")
END = ["ReduceTiedGrads", "ReduceGrads", "OptimizerStep"]
PARTNER = {"SendActivation": ("RecvActivation", 1), "SendGrad": ("RecvGrad", -1)}


class _Instruction:
    def __init__(self, **kwargs: int) -> None:
        self.kwargs = kwargs


class _PipeSchedule:
    def __init__(self, micro_batches: int, stages: int, stage_id: int) -> None:
        self.micro_batches, self.stages, self.stage_id = micro_batches, stages, stage_id


class _PipelineModule:
    """What the exported module inherits: partitions as DeepSpeed does, in the constructor."""

    rank = 0
    stages = 2

    def __init__(self, layers: Sequence[object], **options: object) -> None:
        self.options = options
        self.global_rank, self.stage_id = self.rank, self.rank
        self.activation_checkpoint_interval = 0
        outer = self

        class Topology:
            def get_dim(self, axis: str) -> int:
                return outer.stages

            def get_coord(self, rank: int) -> Any:
                return type("Coordinate", (), {"pipe": rank})

        self._topo = Topology()
        self._partition_layers()

    def _partition_layers(self) -> None:
        raise NotImplementedError

    def _set_bounds(self, start: int, stop: int) -> None:
        self.bounds = (start, stop)


def load(text: str, monkeypatch: pytest.MonkeyPatch | None = None) -> Any:
    """Import the exported file where `deepspeed` is what it needs of it."""
    pipe, schedule = ModuleType("deepspeed.pipe"), ModuleType("deepspeed.runtime.pipe.schedule")
    pipe.PipelineModule = _PipelineModule  # type: ignore[attr-defined]
    schedule.PipeSchedule = _PipeSchedule  # type: ignore[attr-defined]
    for name in NAMES:
        setattr(schedule, name, type(name, (_Instruction,), {}))
    checkpointing = ModuleType("deepspeed.runtime.activation_checkpointing.checkpointing")
    checkpointing.non_reentrant_checkpoint = "non-reentrant"  # type: ignore[attr-defined]
    activations = ModuleType("deepspeed.runtime.activation_checkpointing")
    activations.checkpointing = checkpointing  # type: ignore[attr-defined]
    runtime = ModuleType("deepspeed.runtime.pipe")
    runtime.schedule = schedule  # type: ignore[attr-defined]
    modules = {
        "deepspeed": ModuleType("deepspeed"),
        "deepspeed.pipe": pipe,
        "deepspeed.runtime": ModuleType("deepspeed.runtime"),
        "deepspeed.runtime.activation_checkpointing": activations,
        "deepspeed.runtime.activation_checkpointing.checkpointing": checkpointing,
        "deepspeed.runtime.pipe": runtime,
        "deepspeed.runtime.pipe.schedule": schedule,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        exported: dict[str, Any] = {}
        exec(compile(text, "planned_pipeline.py", "exec"), exported)  # noqa: S102 (as a job imports it)
    return exported


class Engine:
    """One stage as DeepSpeed's engine keeps it."""

    def __init__(self, exported: dict[str, Any], micro_batches: int, stages: int, stage: int) -> None:
        self.stage, self.last = stage, stages - 1
        schedule = exported["PlannedSchedule"](micro_batches, stages, stage)
        self.program = [
            (type(each).__name__, each.kwargs.get("buffer_id")) for step in schedule.steps() for each in step
        ]
        self.at = self.loads = 0
        size = schedule.num_pipe_buffers()
        self.inputs: list[int | None] = [None] * size
        self.outputs: list[int | None] = [None] * size
        self.labels: list[int | None] = [None] * size
        self.gradients: set[int] = set()
        self.incoming: int | None = None
        self.loss: int | None = None
        self.done: list[tuple[str, int]] = []

    @property
    def current(self) -> tuple[str, Any] | None:
        return self.program[self.at] if self.at < len(self.program) else None

    def run(self) -> None:
        """Run what needs nobody else."""
        while self.current is not None and not self.current[0].startswith(("Send", "Recv")):
            name, buffer = self.current
            if name not in END:
                getattr(self, name)(buffer)
            self.at += 1

    def LoadMicroBatch(self, buffer: int) -> None:
        if self.stage == 0:
            assert self.inputs[buffer] is None or self.inputs[buffer] in self.gradients, "overwritten"
            self.inputs[buffer] = self.loads
        if self.stage == self.last:
            self.labels[buffer] = self.loads
        self.loads += 1

    def ForwardPass(self, buffer: int) -> None:
        found = self.inputs[buffer]
        assert found is not None
        assert self.stage != self.last or self.labels[buffer] == found, "labels of another micro-batch"
        self.outputs[buffer] = self.loss = found
        self.done.append(("F", found))

    def BackwardPass(self, buffer: int) -> None:
        if self.stage == self.last:
            found = self.loss
            assert found == self.inputs[buffer], "the loss of another micro-batch"
        else:
            found, self.incoming = self.incoming, None
            assert found == self.outputs[buffer], "the gradient of another micro-batch"
        assert found is not None
        self.outputs[buffer] = None
        self.gradients.add(found)
        self.done.append(("B", found))


def transfer(sender: Engine, receiver: Engine) -> None:
    assert sender.current is not None
    assert receiver.current is not None
    name, buffer = sender.current
    if name == "SendActivation":
        sent = sender.outputs[buffer]
        assert receiver.inputs[receiver.current[1]] is None, "an activation is overwritten"
        receiver.inputs[receiver.current[1]] = sent
    else:
        sent = sender.inputs[buffer]
        assert sent in sender.gradients, "sent before its backward"
        assert receiver.incoming is None, "a gradient is overwritten"
        receiver.incoming, sender.inputs[buffer] = sent, None
    assert sent is not None
    sender.at += 1
    receiver.at += 1


def interpret(recipe: Recipe) -> list[Engine]:
    """Run the exported file on all stages with blocking sends, until all have ended or nobody can go on."""
    return run_text(deepspeed_module(recipe), recipe.micro_batches, recipe.num_stages)


def run_text(text: str, micro_batches: int, stages: int) -> list[Engine]:
    exported = load(text)
    engines = [Engine(exported, micro_batches, stages, stage) for stage in range(stages)]
    while True:
        for engine in engines:
            engine.run()
        pairs = list(meetings(engines))
        if not pairs:
            break
        for sender, receiver in pairs:
            transfer(sender, receiver)
    assert all(engine.current is None for engine in engines), [engine.current for engine in engines]
    return engines


def meetings(engines: Sequence[Engine]) -> Iterator[tuple[Engine, Engine]]:
    for engine in engines:
        if engine.current is None or engine.current[0] not in PARTNER:
            continue
        wanted, step = PARTNER[engine.current[0]]
        other = engines[engine.stage + step]
        if other.current is not None and other.current[0] == wanted:
            yield engine, other


def with_layers(schedule: Schedule, **changes: Any) -> Recipe:
    recipe = recipe_of_schedule(schedule)
    count = recipe.num_stages
    return Recipe(
        **{
            **{name: getattr(recipe, name) for name in Recipe.__slots__},
            "layers": tuple(f"layer{index}" for index in range(2 * count)),
            "cuts": tuple((2 * stage, 2 * stage + 1) for stage in range(count)),
            **changes,
        }
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any order at all of joint backwards, blocks without length among them."""
    placement = make_shape(
        "vshape",
        draw(st.integers(2, 4)),
        forward_span=draw(st.integers(0, 2)),
        backward_span=draw(st.integers(0, 3)),
        lag=draw(st.integers(0, 1)),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return draw_schedule(placement, draw(st.integers(1, 5)), rng)


@settings(max_examples=80, deadline=None)
@given(schedules())
def test_any_order_runs_and_each_pass_runs_once(schedule: Schedule) -> None:
    recipe = with_layers(schedule)
    expected = sorted((kind, number) for kind in "FB" for number in range(recipe.micro_batches))
    for engine in interpret(recipe):
        assert sorted(engine.done) == expected
        assert [name for name, _ in engine.program[-3:]] == END


def test_every_hand_written_schedule_of_one_stage_a_rank_runs() -> None:
    placement = vshape(4)
    rules = [rule for rule in HANDWRITTEN if not rule.needs_limit and rule.why_not(placement, 8) is None]
    assert len(rules) >= 3
    for rule in rules:
        interpret(with_layers(rule.build(placement, micro_batches=8)))


def test_1f1b_keeps_its_order_and_its_buffers() -> None:
    recipe = with_layers(ONE_F_ONE_B.build(vshape(4), micro_batches=8))
    streams = instruction_streams(recipe)
    for stage, own in enumerate(recipe.actions):
        passes = [each.letter for each in streams[stage] if each.letter in "FB"]
        assert passes == [str(action.kind) for action in own]
        assert 1 + max(each.buffer for each in streams[stage]) <= max(2, 4 - stage)
    assert " ".join(map(str, streams[3][:4])) == "a0 L0 F0 B0"


def test_only_the_first_and_the_last_stage_load_samples_and_each_once() -> None:
    streams = instruction_streams(with_layers(ONE_F_ONE_B.build(vshape(4), micro_batches=8)))
    assert ["".join(map(str, own)).count("L") for own in streams] == [8, 0, 0, 8]


def test_the_last_stage_s_forwards_are_put_off_where_the_engine_has_one_loss() -> None:
    recipe = with_layers(GPIPE.build(vshape(2), micro_batches=3))
    assert "".join(each.letter for each in instruction_streams(recipe)[1] if each.letter in "FB") == "FBFBFB"
    interpret(recipe)


def test_stages_take_their_layers_and_recompute_as_planned() -> None:
    recipe = with_layers(
        ONE_F_ONE_B.build(vshape(2), micro_batches=2), recompute=(True, False), micro_batch=4, data_parallel=2
    )
    assert parts_of(recipe) == (0, 2, 4)
    text = deepspeed_module(recipe)
    assert text.index("    # stage 0\n") < text.index("    # stage 1\n")
    exported = load(text)
    assert '"train_micro_batch_size_per_gpu": 4' in exported["__doc__"]
    assert "deepspeed --num_gpus 4 YOUR_SCRIPT.py" in exported["__doc__"]
    for stage, (bounds, interval) in enumerate([((0, 2), 1), ((2, 4), 0)]):
        base = type("Base", (exported["PlannedPipelineModule"],), {"rank": stage})
        module = base(["layer"] * 4)
        assert (module.bounds, module.activation_checkpoint_interval) == (bounds, interval)
        assert module.parts == [0, 2, 4]
        assert module.options == {"activation_checkpoint_func": "non-reentrant"}
    assert base(["layer"] * 4, activation_checkpoint_func=1).options == {"activation_checkpoint_func": 1}
    with pytest.raises(ValueError, match="the model has 3 layers, the plan 4"):
        exported["PlannedPipelineModule"](["layer"] * 3)
    with pytest.raises(ValueError, match="the job has 3 micro-batches on 2 stages"):
        exported["PlannedSchedule"](3, 2, 0)


def test_names_of_layers_stay_texts() -> None:
    names = ('"""\nimport os; os.abort()', "a'b", "c\\", "${x}")
    recipe = with_layers(ONE_F_ONE_B.build(vshape(2), micro_batches=1), layers=names)
    assert load(deepspeed_module(recipe))["LAYERS"] == list(names)


def test_the_plan_replaces_deepspeed_s_own_schedule() -> None:
    exported = load(deepspeed_module(with_layers(ONE_F_ONE_B.build(vshape(2), micro_batches=1))))
    exported["use_plan"]()
    assert exported["schedule"].TrainSchedule is exported["PlannedSchedule"]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (with_layers(GPIPE.build(interleaved(2), micro_batches=2)), "holds stage i on rank i"),
        (with_layers(GPIPE.build(vshape(2, split_backward=True), micro_batches=2)), "splits backwards"),
        (with_layers(GPIPE.build(vshape(2, infer=True), micro_batches=2)), "no backward"),
        (with_layers(GPIPE.build(vshape(1), micro_batches=2)), "one stage"),
        (recipe_of_schedule(GPIPE.build(vshape(2), micro_batches=2)), "names no layers"),
    ],
)
def test_what_deepspeed_cannot_run_is_refused(recipe: Recipe, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        deepspeed_module(recipe)


def test_the_interpreter_finds_faults() -> None:
    """A send that comes too early, a gradient too many, a loss that is gone: none goes unnoticed."""
    recipe = with_layers(ONE_F_ONE_B.build(vshape(2), micro_batches=2))
    text = deepspeed_module(recipe)
    good = "L0 F0 A0 L1 F1 A1 g0 B0 g1 B1"
    assert good in text
    for bad in (
        "L0 F0 A0 L1 F1 g0 B0 A1 g1 B1 A1",  # a send that nobody receives
        "L0 F0 A0 L1 F1 A1 g0 g1 B0 B1",  # a gradient over another
        "L0 F0 A0 L0 F0 A0 g0 B0 g0 B0",  # a micro-batch over another
        "L0 F0 L1 F1 A1 A0 g0 B0 g1 B1",  # two micro-batches in the wrong order
    ):
        with pytest.raises(AssertionError):
            run_text(text.replace(good, bad), 2, 2)

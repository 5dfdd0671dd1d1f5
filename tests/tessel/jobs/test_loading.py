"""Plans of inference served by a process a device: values, order, back-pressure, ends, named failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

from planned_models import ECHO, ENCODER_DECODER, WIDTH, WORDS, echo, encoder_decoder  # noqa: E402 - after the skips
from saved_plans import save_planned  # noqa: E402
from shared_modules import PYTHONPATH  # noqa: E402

import tessel  # noqa: E402
from tessel.compiling.served_pipeline import ServedPipeline  # noqa: E402
from tessel.engine.errors import EngineError  # noqa: E402
from tessel.errors import ScheduleError  # noqa: E402
from tests.harness.local_fleet import wait_until  # noqa: E402
from tests.harness.processes import has_ended_by_id  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.tvm]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Plans, and an environment in which ranks find the models of tests."""
    folder = tmp_path_factory.mktemp("plans")
    save_planned(ECHO, "first", folder / "echo.json", training=False)
    save_planned(ENCODER_DECODER, "decoder.0", folder / "words.json", training=False)
    save_planned(ENCODER_DECODER, "decoder.0", folder / "training.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        yield folder


def serve(path: Path, **options: Any) -> ServedPipeline:
    found = tessel.load(path, trust_model=True, **options)
    assert isinstance(found, ServedPipeline)
    return found


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Iterator[ServedPipeline]:
    with serve(folder / "echo.json", depth=3) as pipeline:
        yield pipeline


def processes_of(pipeline: ServedPipeline) -> list[Any]:
    return pipeline._ranks._processes


def assert_echoed(found: dict[str, Any], data: Any) -> None:
    with torch.no_grad():
        expected = echo()[0](data)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)


def test_a_call_gives_the_modules_values_names_and_kinds(pipeline: ServedPipeline) -> None:
    data = torch.randn(4, WIDTH)
    assert_echoed(pipeline(data), data)
    assert_echoed(pipeline(x=data), data)
    found = pipeline(data.numpy())
    assert all(isinstance(each, np.ndarray) for each in found.values())
    assert "tvm" in pipeline.explain()
    with pytest.raises(ValueError, match=r"input 'x' has shape \[3, 8\]"):
        pipeline(torch.zeros(3, WIDTH))
    with pytest.raises(ValueError, match="a pipeline is loaded from its plan"):
        pipeline.save("x.tessel")


def test_what_streams_comes_in_order_and_no_more_than_allowed_is_on_its_way(
    pipeline: ServedPipeline,
) -> None:
    batches = [torch.full((4, WIDTH), float(number)) for number in range(20)]
    taken: list[int] = []

    def draw() -> Iterator[Any]:
        for number, batch in enumerate(batches):
            taken.append(number)
            yield batch

    most = 0
    for number, found in enumerate(pipeline.stream(draw())):
        assert_echoed(found, batches[number])
        most = max(most, len(taken) - number)
    assert len(taken) == 20
    assert 2 <= most <= 4, "three on their way, and the one that is handed in"
    assert_echoed(next(pipeline.stream([{"x": batches[3]}])), batches[3])


def test_a_full_pipeline_has_further_callers_wait(pipeline: ServedPipeline) -> None:
    data = torch.randn(4, WIDTH)
    processes = processes_of(pipeline)
    os.kill(processes[1].pid, signal.SIGSTOP)
    try:
        waiting = [pipeline.submit(data) for _ in range(3)]
        handed_in = threading.Event()
        caller = threading.Thread(target=lambda: (pipeline.submit(data).result(300), handed_in.set()))
        caller.start()
        assert not handed_in.wait(0.3)
        assert not any(each.done() for each in waiting)
    finally:
        os.kill(processes[1].pid, signal.SIGCONT)
    assert handed_in.wait(300)
    caller.join()
    for each in waiting:
        assert_echoed(each.result(300), data)


def test_several_threads_call_at_once(pipeline: ServedPipeline) -> None:
    batches = [torch.randn(4, WIDTH) for _ in range(16)]
    with ThreadPoolExecutor(8) as pool:
        for found, batch in zip(pool.map(pipeline, batches), batches, strict=True):
            assert_echoed(found, batch)


def test_a_rank_that_is_killed_is_named_to_everyone_who_waits(pipeline: ServedPipeline) -> None:
    """The last of the tests of this pipeline: it is over then."""
    data = torch.randn(4, WIDTH)
    processes = processes_of(pipeline)
    os.kill(processes[1].pid, signal.SIGSTOP)
    waiting = [pipeline.submit(data) for _ in range(2)]
    processes[1].kill()
    for each in waiting:
        with pytest.raises(EngineError, match=r"rank 1 \(stage 1, process \d+\) was ended by signal 9"):
            each.result(300)
    with pytest.raises(EngineError, match="rank 1"):
        pipeline(data)
    pipeline.close()
    assert all(process.poll() is not None for process in processes)


@pytest.mark.slow
def test_a_tensor_that_passes_stages_by_and_tied_weights_arrive(folder: Path) -> None:
    module, _ = encoder_decoder()
    rng = torch.Generator().manual_seed(1)
    with serve(folder / "words.json") as pipeline:
        processes = processes_of(pipeline)
        for _ in range(3):
            source, target = (torch.randint(0, WORDS, (2, 3), generator=rng) for _ in range(2))
            with torch.no_grad():
                expected = module(source, target)
            torch.testing.assert_close(pipeline(source, target=target), expected, rtol=1e-4, atol=1e-5)
        last = pipeline.submit(source, target)
    torch.testing.assert_close(last.result(0), expected, rtol=1e-4, atol=1e-5)
    assert [process.returncode for process in processes] == [0, 0], "they ended by themselves"
    with pytest.raises(EngineError, match="the pipeline was closed; load its plan again"):
        pipeline(source, target)


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_named_when_time_is_up(folder: Path) -> None:
    with serve(folder / "echo.json") as pipeline:
        pipeline._ranks._job = type(pipeline._ranks._job)(
            **{name: getattr(pipeline._ranks._job, name) for name in pipeline._ranks._job.__slots__}
            | {"timeout_s": 0.5}
        )
        os.kill(processes_of(pipeline)[0].pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match=r"longer than 0 s \(rank 0 .* is stopped\)"):
            pipeline(torch.randn(4, WIDTH))


@pytest.mark.slow
def test_ranks_end_with_a_caller_that_is_killed(folder: Path) -> None:
    code = (
        "import sys, time, tessel; p = tessel.load(sys.argv[1], trust_model=True); "
        "print(*[each.pid for each in p._ranks._processes], flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder / "echo.json")], stdout=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None
        ranks = [int(each) for each in caller.stdout.readline().split()]
        caller.kill()
    assert len(ranks) == 2
    wait_until(lambda: all(map(has_ended_by_id, ranks)))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("training.json", {"trust_model": True}, "is a plan of training, and only inference is served"),
        ("echo.json", {}, r"the plan names the Python code 'planned_models:echo'"),
        ("echo.json", {"model": "planned_models:halves"}, "was tuned for 'planned_models:echo', not for"),
    ],
)
def test_what_is_not_served_is_refused_before_a_process_starts(
    folder: Path, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message) as refused:
        tessel.load(folder / name, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_rank_that_cannot_build_its_stages_is_named(folder: Path, tmp_path: Path) -> None:
    text = (folder / "echo.json").read_text().replace("planned_models:echo", "planned_models:nothing")
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(
        ScheduleError, match=r"rank \d .* failed \(UnknownNameError: .*has no function 'nothing'"
    ):
        tessel.load(tmp_path / "other.json", trust_model=True)


def test_a_program_has_no_options(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="is a program, which has no options; depth are a plan's"):
        tessel.load(tmp_path / "x.tessel", depth=2)

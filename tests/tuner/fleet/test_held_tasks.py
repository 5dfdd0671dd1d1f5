"""Machines that hold tasks and end none are found, and no others."""

from __future__ import annotations

from tuner.fleet.task_queue import HeldTasks

LIMITS = {"a": 10.0, "b": 30.0}


def late(tasks: HeldTasks, now: float, *keys: str, elsewhere: tuple[str, ...] = ()) -> bool:
    return tasks.late({"machine": keys}, LIMITS, elsewhere=elsewhere, now=now) == ("machine",)


def test_a_machine_is_late_after_the_longest_of_what_it_holds() -> None:
    tasks = HeldTasks()
    assert [late(tasks, now, "a", "b") for now in (5.0, 34.0, 35.0, 36.0)] == [False, False, False, True]


def test_an_end_begins_the_time_anew_and_a_new_task_does_not() -> None:
    tasks = HeldTasks()
    assert not late(tasks, 0.0, "a", "of another tuner")
    assert not late(tasks, 8.0, "a")
    assert not late(tasks, 17.0, "a", "of another tuner")
    assert late(tasks, 19.0, "a", "of another tuner")


def test_what_others_ask_for_is_not_waited_for_and_time_for_others_does_not_count() -> None:
    tasks = HeldTasks()
    assert not late(tasks, 0.0, "of another tuner")
    assert not late(tasks, 99.0, "of another tuner")
    assert not late(tasks, 100.0, "a")
    assert not late(tasks, 150.0, "a", elsewhere=("machine",))
    assert not late(tasks, 160.0, "a")
    assert late(tasks, 161.0, "a")


def test_machines_are_late_one_by_one() -> None:
    tasks = HeldTasks()
    assert tasks.late({"first": ["a"]}, LIMITS, elsewhere=(), now=0.0) == ()
    assert tasks.late({"first": ["a"], "second": ["b"]}, LIMITS, elsewhere=(), now=5.0) == ()
    assert tasks.late({"first": ["a"], "second": ["b"]}, LIMITS, elsewhere=(), now=20.0) == ("first",)

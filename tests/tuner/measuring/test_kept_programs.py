"""What is costly to make again stays; nothing stays for ever."""

import pytest

from tuner.measuring.worker.kept_programs import KeptPrograms


class Maker:
    """Makes programs that take given times, and counts how often each was made."""

    def __init__(self, capacity):
        self.now = 0.0
        self.made = []
        self.kept = KeptPrograms(capacity, clock=lambda: self.now)

    def get(self, name, cost_s):
        def make():
            self.now += cost_s
            self.made.append(name)
            return f"program {name}"

        assert self.kept.get(name, make) == f"program {name}"


def test_a_stage_outlives_hundreds_of_kernels():
    maker = Maker(4)
    maker.get("stage", 5.0)
    for number in range(30):
        maker.get(f"kernel{number}", 0.1)
    maker.get("stage", 5.0)
    assert maker.made.count("stage") == 1


def test_what_is_never_asked_for_again_goes():
    """Each drop raises what a new program starts from by a second, so that the stage's five are used up."""
    maker = Maker(2)
    maker.get("stage", 5.0)
    for number in range(7):
        maker.get(f"kernel{number}", 1.0)
    maker.get("stage", 5.0)
    assert maker.made.count("stage") == 2


def test_a_hit_makes_nothing_and_renews_the_credit():
    maker = Maker(2)
    maker.get("a", 1.0)
    maker.get("b", 1.0)
    maker.get("c", 1.0)  # drops a, the older of equals
    maker.get("b", 1.0)
    maker.get("d", 1.0)  # drops c: b was used since
    maker.get("b", 1.0)
    assert maker.made == ["a", "b", "c", "d"]


def test_a_program_that_cannot_be_made_drops_none():
    maker = Maker(1)
    maker.get("a", 1.0)

    def fail():
        raise RuntimeError("it cannot be built")

    with pytest.raises(RuntimeError):
        maker.kept.get("b", fail)
    maker.get("a", 1.0)
    assert maker.made == ["a"]


def test_room_for_none_is_refused():
    with pytest.raises(ValueError, match="keep 1 or more"):
        KeptPrograms(0)

"""Groups of global ranks that hold the copies of a tied weight, in the order that frameworks number ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.plan import TiedParameter
from tuner.stages import tied_ranks

ENDS = (TiedParameter("embedding.weight", 0), TiedParameter("head.weight", 3))


def test_sixteen_ranks_as_megatron_numbers_them():
    """Tensor-parallel pairs 0 1, 2 3, …; pipelines 0 4 8 12, 1 5 9 13, …; replicas 0 2, 1 3, …"""
    assert tied_ranks([ENDS], tensor_parallel=2, data_parallel=2) == (((0, 12), (1, 13), (2, 14), (3, 15)),)


def test_a_pipeline_alone_has_one_group_of_its_stages():
    assert tied_ranks([ENDS, ENDS[:1]]) == (((0, 3),), ((0,),))


def test_stages_of_one_rank_are_one_copy():
    """An interleaved pipeline of two ranks, and a V whose ends meet on one rank."""
    assert tied_ranks([ENDS], tensor_parallel=2, rank_of_stage=(0, 1, 0, 1)) == (((0, 2), (1, 3)),)
    assert tied_ranks([ENDS], tensor_parallel=2, rank_of_stage=(0, 1, 1, 0)) == (((0,), (1,)),)


@given(pipeline=st.integers(1, 6), data=st.integers(1, 4), tensor=st.integers(1, 4), choose=st.data())
def test_groups_are_columns_of_the_grid_of_ranks(pipeline, data, tensor, choose):
    """DeepSpeed's axes are pipe, data and model, the last the fastest, as of an array of that shape."""
    stages = sorted(choose.draw(st.sets(st.integers(0, pipeline - 1), min_size=1)))
    grid = np.arange(pipeline * data * tensor).reshape(pipeline, data, tensor)
    tie = [TiedParameter("w", stage) for stage in reversed(stages)]
    (found,) = tied_ranks([tie], tensor_parallel=tensor, data_parallel=data)
    assert found == tuple(tuple(column) for column in grid[stages].reshape(len(stages), -1).T.tolist())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tensor_parallel": 0}, "tensor_parallel is 0"),
        ({"data_parallel": -1}, "data_parallel is -1"),
        (
            {"rank_of_stage": (0, 1)},
            "stage 3 holds head.weight, and rank_of_stage names the ranks of 2",
        ),
    ],
)
def test_what_is_no_job_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        tied_ranks([ENDS], **given)

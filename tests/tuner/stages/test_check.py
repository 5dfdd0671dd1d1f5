"""The check of stages finds what is broken in them."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from tuner.errors import TunerError
from tuner.frontend import load_model
from tuner.frontend.model import InputSpec
from tuner.stages import WholeResults, build_stages, check_gradients, cut_after, draw_tensors

pytestmark = pytest.mark.tvm

X = InputSpec(name="x", shape=(2, 4), dtype="float32")


@pytest.fixture
def product_model(make_model):
    def build(emit, x, w):
        from_weight = emit(op.multiply(x, w), "0")
        return op.sum(emit(op.multiply(from_weight, w), "1"))

    return make_model(build, inputs=[X], parameters={"w": ((2, 4), "float32")})


def test_a_weight_of_two_stages_has_the_sum_of_their_gradients(product_model, interpret):
    stages = build_stages(product_model, cut_after(product_model, ["0"]))
    assert check_gradients(product_model, stages, seed=0, run=interpret).is_within(1e-6)
    unsummed = (replace(stages[0], parameters=()), stages[1])
    assert not check_gradients(product_model, unsummed, seed=0, run=interpret).is_within(0.1)


def test_a_stage_that_is_left_out_is_found(product_model, interpret):
    stages = build_stages(product_model, cut_after(product_model, ["0"]))
    with pytest.raises(TunerError, match="which no stage before it makes"):
        check_gradients(product_model, stages[1:], seed=0, run=interpret)
    with pytest.raises(TunerError, match=r"reads \['.*\.grad'\]"):
        check_gradients(product_model, stages[:1], seed=0, run=interpret)
    plain = replace(product_model, training=False)
    left_out = check_gradients(plain, build_stages(plain, cut_after(plain, ["0"]))[:1], seed=0, run=interpret)
    assert (left_out.tensor[:6], left_out.fault) == ("output", "is missing")


def test_a_wrong_run_is_found(product_model, interpret):
    stages = build_stages(product_model, cut_after(product_model, ["0"]))
    broken = stages[1].backward_weight.module

    def run(module, arrays):
        return [2 * array if module is broken else array for array in interpret(module, arrays)]

    assert not check_gradients(product_model, stages, seed=0, run=run).is_within(0.1)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_is_named_with_its_stages(product_model, interpret, value):
    """NaN is neither larger nor smaller than any error, so a plain `max` over errors let it pass."""
    stages = build_stages(product_model, cut_after(product_model, ["0"]))
    broken = {id(stages[0].backward.module), id(stages[0].backward_weight.module)}

    def run(module, arrays):
        made = interpret(module, arrays)
        return [np.full_like(array, value) for array in made] if id(module) in broken else made

    found = check_gradients(product_model, stages, seed=0, run=run)
    assert found.tensor == "the gradient of w (stage0 + stage1, the joint backward)"
    assert found.fault.endswith("in 8 of 8 values, where the reference is finite")


def test_a_model_that_gives_no_numbers_itself_is_not_proven(make_model, run):
    def build(emit, x, w):
        product = emit(op.multiply(x, w), "0")
        return op.sum(emit(op.log(op.negative(op.multiply(product, product))), "1"))

    model = make_model(build, inputs=[X], parameters={"w": ((2, 4), "float32")})
    stages = build_stages(model, cut_after(model, ["0"]))
    found = check_gradients(model, stages, seed=0, run=run)
    assert found.fault == "is NaN in 1 of 1 values, in the reference as well: the model itself makes it"


def test_rounding_errors_of_a_gradient_that_is_zero_do_not_count(make_model, interpret):
    """What one stage adds the next takes away again: the gradient of `b` is nothing but rounding."""

    def build(emit, x, w, b):
        moved = emit(op.add(op.multiply(x, w), b), "0")
        almost = op.multiply(b, op.multiply(w, relax.const(1 - 2**-23, "float32")))
        return op.sum(emit(op.subtract(op.multiply(moved, w), almost), "1"))

    parameters = {"w": ((2, 4), "float32"), "b": ((2, 4), "float32")}
    model = make_model(build, inputs=[X], parameters=parameters)
    stages = build_stages(model, cut_after(model, ["0"]))
    rng = np.random.default_rng(0)

    def rounded(module, arrays):
        made = interpret(module, arrays)
        noise = [1 + 1e-7 * rng.standard_normal(np.shape(array)) for array in made]
        return [(array * each).astype(array.dtype) for array, each in zip(made, noise, strict=True)]

    assert check_gradients(model, stages, seed=0, run=rounded).is_within(1e-3)


def test_tensors_depend_on_the_seed_alone():
    model = load_model("gpt2:tiny", training=True)
    draws = [draw_tensors(model, rng=np.random.default_rng(seed)) for seed in (1, 1, 2)]
    np.testing.assert_equal(draws[0], draws[1])
    assert any((draws[0][name] != draws[2][name]).any() for name in draws[0])
    assert draws[0]["labels"].max() < 512


def test_a_model_runs_as_a_whole_once_for_all_ways_to_cut_it(product_model, interpret):
    ran = []

    def run(module, arrays):
        ran.append(module)
        return interpret(module, arrays)

    def num_runs(model, cuts, seed=0):
        stages = build_stages(model, cut_after(model, cuts))
        before = len(ran)
        assert check_gradients(model, stages, seed=seed, run=run, known=known).is_within(1e-6)
        return len(ran) - before

    known = WholeResults()
    first, second = num_runs(product_model, ["0"]), num_runs(product_model, ["0"])
    assert first == second + 2  # forward and joint backward of the whole
    assert num_runs(product_model, ["0"], seed=1) == first
    assert num_runs(replace(product_model), ["0"], seed=1) == first  # it may hold other weights
    # What is kept is what the whole gave, so that wrong stages are found against it as well.
    unsummed = build_stages(product_model, cut_after(product_model, ["0"]))
    unsummed = (replace(unsummed[0], parameters=()), unsummed[1])
    for _ in range(2):
        found = check_gradients(product_model, unsummed, seed=0, run=run, known=known)
        assert not found.is_within(0.1)


def test_results_that_are_too_large_are_not_kept(product_model, interpret):
    stages = build_stages(product_model, cut_after(product_model, ["0"]))
    sizes = {"x": 32, "w": 32, "loss": 4, "gradient of w": 32}
    for most_bytes, is_kept in ((sum(sizes.values()), True), (sum(sizes.values()) - 1, False)):
        known = WholeResults(most_bytes=most_bytes)
        check_gradients(product_model, stages, seed=0, run=interpret, known=known)
        assert (known.find(product_model, 0) is not None) == is_kept

"""Backwards transpose no weight and no gradient of one, and their gradients are torch's."""

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from tuner.frontend.loading import load_model
from tuner.frontend.model import InputSpec
from tuner.stages import build_stages, cut_between, draw_tensors, layers_of, run_stages
from tuner.stages.interface import gradient_name
from tuner.stages.program import Binding, operator_name, variables_of
from tuner.stages.transpositions import absorb_transpositions

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


def mean(emit, value):
    return emit(op.mean(value))


def tied_head(emit, x, table):
    """Y = X Wᵀ, as a head multiplies by an embedding's table."""
    return mean(emit, op.multiply(y := emit(op.matmul(x, op.permute_dims(table))), y))


def batched_head(emit, x, table):
    rows = emit(op.reshape(x, (2, 3, 4)))
    return mean(emit, op.multiply(y := emit(op.matmul(rows, op.permute_dims(table))), y))


def scores(emit, x, key):
    """Q Kᵀ, where the key is computed, so that a transpose of it could be kept."""
    computed = emit(op.tanh(key))
    turned = emit(op.permute_dims(computed))
    return mean(emit, op.multiply(y := emit(op.matmul(x, turned)), y))


def scores_and_more(emit, x, key):
    """The same, where the backward reads the transpose for something else, too."""
    turned = emit(op.permute_dims(emit(op.tanh(key))))
    product = emit(op.matmul(x, turned))
    return mean(emit, op.multiply(product, emit(op.multiply(emit(op.matmul(x, turned)), op.sin(product)))))


def square(value):
    return (value * value).mean()


def with_sine(x, turned):
    product = x @ turned
    return (product * (x @ turned) * torch.sin(product)).mean()


CASES = {
    "tied head": (tied_head, lambda x, w: square(x @ w.T)),
    "batched head": (batched_head, lambda x, w: square(x.reshape(2, 3, 4) @ w.T)),
    "scores": (scores, lambda x, w: square(x @ torch.tanh(w).T)),
    "scores and more": (scores_and_more, lambda x, w: with_sine(x, torch.tanh(w).T)),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_transposed_products_are_those_of_torch(name, make_model, run):
    build, in_torch = CASES[name]
    model = make_model(
        lambda emit, x, w, u: build(emit, emit(op.multiply(x, u)), w),
        inputs=[InputSpec(name="x", shape=(6, 4), dtype="float32")],
        parameters={"w": ((5, 4), "float32"), "u": ((6, 4), "float32")},
    )
    tensors = draw_tensors(model, rng=np.random.default_rng(0))
    tensors = {each: 20 * value for each, value in tensors.items()}
    x, w, u = (torch.tensor(tensors[each], requires_grad=each != "x") for each in ("x", "w", "u"))
    in_torch(x * u, w).backward()
    for split in (False, True):
        found = run_stages(build_stages(model, ()), tensors, split=split, run=run)
        for each, tensor in (("w", w), ("u", u)):
            expected = tensor.grad.numpy()
            np.testing.assert_allclose(
                found[gradient_name(each)], expected, atol=1e-5 * np.abs(expected).max()
            )


@pytest.mark.parametrize("name", ["gpt2:tiny", "mt5:tiny"])
def test_no_stage_transposes_a_weight_but_as_an_operand_of_a_product(name):
    model = load_model(name, shapes={}, batch=1, training=True)
    layers = layers_of(model)
    stages = build_stages(model, cut_between(layers, [len(layers) // 2]))
    weights = {weight for stage in stages for weight in stage.parameters}
    permuted = 0
    for stage in stages:
        for function in (stage.forward, stage.backward, stage.backward_input, stage.backward_weight):
            if function is None:
                continue
            returned, transposed = _returned(function.module), _transposed(function.module)
            made = {var: source for var, source, _ in transposed}
            assert not {made[var] for var in returned & set(made)} & _products(function.module), stage.name
            for _, source, readers in transposed:
                if source in weights:
                    permuted += 1
                    assert set(readers) == {"matmul"}, (stage.name, source)
    assert permuted, "linear layers' input gradients read their weights transposed"


def test_forward_keeps_a_key_and_not_its_transpose_beside_it(make_model):
    model = make_model(
        lambda emit, x, key, w, u: scores(emit, emit(op.multiply(x, u)), emit(op.multiply(key, w))),
        inputs=[
            InputSpec(name="x", shape=(6, 4), dtype="float32"),
            InputSpec(name="key", shape=(5, 4), dtype="float32"),
        ],
        parameters={"w": ((5, 4), "float32"), "u": ((6, 4), "float32")},
    )
    (stage,) = build_stages(model, ())
    assert (4, 5) not in {info.shape for info in stage.saved}


def bind(value):
    """Bind an expression to a variable, as a program does."""
    value = relax.BlockBuilder().normalize(value)
    return Binding(relax.Var("value", value.ty), value, variables_of(value))


def operators_after(forward, adjoint):
    """Name the operators of an adjoint program and what each reads, once its transpositions are absorbed."""
    bindings, known = absorb_transpositions(forward, adjoint)
    last = known[adjoint[-1].var]
    return [(operator_name(each.value), each.reads) for each in bindings], last


def test_a_transposed_product_takes_back_the_transposition_of_an_operand():
    left, source = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in {"left": (2, 3), "source": (4, 3)}.items()
    )
    right = bind(op.permute_dims(source))
    product = bind(op.matmul(left, right.var))
    found, _ = operators_after([], [right, product, bind(op.permute_dims(product.var))])
    assert [name for name, _ in found] == ["permute_dims", "matmul", "permute_dims", "matmul"]
    assert found[2][1] == (left,)
    assert found[3][1][0].same_as(source)


def test_a_transposition_back_is_read_from_its_source_whoever_else_reads_it():
    source = relax.Var("source", relax.TensorType((2, 3), "float32"))
    turned = bind(op.permute_dims(source))
    again = bind(op.permute_dims(turned.var))
    _, last = operators_after([], [turned, bind(op.sin(turned.var)), again])
    assert last.same_as(source)


@pytest.mark.parametrize("is_read_otherwise", [False, True])
def test_what_the_forward_keeps_anyway_is_transposed_back(is_read_otherwise):
    source = relax.Var("source", relax.TensorType((2, 3), "float32"))
    turned = bind(op.permute_dims(source))
    others = [bind(op.sin(turned.var))] if is_read_otherwise else []
    _, last = operators_after([turned], [*others, bind(op.permute_dims(turned.var))])
    assert last.same_as(source) != is_read_otherwise


def drawn(rng, values, num_bindings):
    """Return bindings of random operators, each of values before it; all axes have one length."""
    values, found = list(values), []
    for _ in range(num_bindings):
        first, second = (values[index] for index in rng.integers(len(values), size=2))
        rank = len(first.ty.shape)
        axes = rng.permutation(rank).tolist() if rng.integers(2) else [*range(rank - 2), rank - 1, rank - 2]
        turned = op.permute_dims(first, None if rng.integers(4) == 0 or rank == 1 else axes)
        is_scalar = rank == len(second.ty.shape) == 1
        found.append(
            bind((turned, turned, op.sin(first) if is_scalar else op.matmul(first, second))[rng.integers(3)])
        )
        values.append(found[-1].var)
    return found


def computed(bindings, arrays):
    """Compute a program of these operators; Relax lists the axes of a permutation as NumPy does."""
    for binding in bindings:
        read = [arrays[each] for each in binding.value.args]
        name = operator_name(binding.value)
        if name == "permute_dims":
            axes = binding.value.attrs.axes
            arrays[binding.var] = np.transpose(*read, None if axes is None else [int(axis) for axis in axes])
        else:
            arrays[binding.var] = {"matmul": np.matmul, "sin": np.sin}[name](*read)
    return arrays


def cost_of(bindings, outputs, forward):
    """Count the products that some outputs need, and the forward's values that must be kept for them."""
    needed, products = set(outputs), 0
    for binding in reversed(bindings):
        if binding.var in needed:
            needed.update(binding.reads)
            products += operator_name(binding.value) == "matmul"
    return products, len(needed & {each.var for each in forward})


def test_random_programs_compute_the_same_with_no_more_products_and_no_more_kept():
    for seed in range(200):
        rng = np.random.default_rng(seed)
        given = [relax.Var("x", relax.TensorType((3,) * rank, "float32")) for rank in (1, 2, 2, 3)]
        forward = drawn(rng, given, 3)
        adjoint = drawn(rng, [*given, *(each.var for each in forward)], int(rng.integers(1, 8)))
        bindings, known = absorb_transpositions(forward, adjoint)
        read = {variable for each in adjoint for variable in each.reads}
        outputs = [each.var for each in adjoint if each.var not in read]
        arrays = {each: rng.normal(size=(3,) * len(each.ty.shape)) for each in given}
        arrays = computed(forward, arrays)
        expected, found = computed(adjoint, dict(arrays)), computed(bindings, dict(arrays))
        for each in outputs:
            np.testing.assert_allclose(found[known[each]], expected[each], err_msg=f"program {seed}")
        after = cost_of(bindings, [known[each] for each in outputs], forward)
        before = cost_of(adjoint, outputs, forward)
        assert after[0] <= before[0], f"program {seed}"
        assert after[1] <= before[1], f"program {seed}"


def _bindings(module):
    return [binding for block in module["main"].body.blocks for binding in block.bindings]


def _returned(module):
    return {field.name for field in module["main"].body.body.fields if isinstance(field, relax.Var)}


def _products(module):
    return {each.var.name for each in _bindings(module) if operator_name(each.value) == "matmul"}


def _transposed(module):
    """List the permutations of matrices: the variable, what it permutes, and the operators that read it."""
    calls = [each.value for each in _bindings(module) if isinstance(each.value, relax.Call)]
    operators = [(operator_name(call), call.args) for call in calls]
    found = []
    for each in _bindings(module):
        if operator_name(each.value) == "permute_dims" and len(each.var.ty.shape) == 2:
            readers = [name for name, read in operators if any(each.var.same_as(arg) for arg in read)]
            found.append((each.var.name, each.value.args[0].name, readers))
    return found

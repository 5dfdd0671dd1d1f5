"""Programs are seen as the kernels that libraries and fusing compilers run for them."""

import math

import pytest

from cost_model.errors import CostModelError
from cost_model.gpu.devices import find_gpu
from cost_model.gpu.kernel_model import GpuKernelModel, GpuManifest, GpuQuery
from cost_model.gpu.kernels import Family
from cost_model.gpu.programs import kernels_of_program, predict_programs
from cost_model.gpu.typed.kernels import Attention, Product
from cost_model.gpu.typed.model import gpu_kernel_us
from records import Operator, Tensor, Workload
from records.workload import describe
from tests.oracles.gpu_model import trained_gpu_model

ROWS, INNER, COLUMNS = 32, 64, 128
WIDE = Tensor((ROWS, COLUMNS), "float32")
X, WEIGHT, BIAS = (
    Tensor((ROWS, INNER), "float32"),
    Tensor((INNER, COLUMNS), "float32"),
    Tensor((128,), "float32"),
)
EMPTY = GpuManifest(
    features_version=0,
    feature_names=(),
    coverage=0.9,
    num_samples=0,
    records_digest="",
    last_record_id=0,
    versions=(),
    seed=0,
    families={},
)


def operator(name: str, kind: int, inputs: tuple[int, ...], *outputs: Tensor) -> Operator:
    return Operator(
        name=name, kind=kind, inputs=inputs, outputs=outputs, flops=sum(t.num_elements for t in outputs)
    )


def program(inputs: tuple[Tensor, ...], operators: tuple[Operator, ...], *results: int) -> Workload:
    return describe("stage", inputs, operators, results)


def bytes_of(*tensors: Tensor) -> int:
    return sum(tensor.num_bytes for tensor in tensors)


def test_a_product_takes_its_bias_and_a_chain_of_elements_is_one_kernel() -> None:
    whole = program(
        (X, WEIGHT, BIAS, WIDE),
        (
            operator("matmul", 4, (0, 1), WIDE),  # 4
            operator("add", 1, (4, 2), WIDE),  # 5
            operator("tanh", 0, (5,), WIDE),  # 6
            operator("multiply", 1, (6, 3), WIDE),  # 7
        ),
        7,
    )
    product, chain = kernels_of_program(whole)
    assert (product.family, product.extents) == (Family.LINEAR, (1, ROWS, INNER, COLUMNS))
    assert product.num_bytes == bytes_of(X, WEIGHT, BIAS, WIDE)
    assert (chain.family, chain.num_bytes, chain.is_costly) == (Family.ELEMENTWISE, 3 * WIDE.num_bytes, True)


def test_what_others_read_too_is_not_fused_away() -> None:
    whole = program(
        (WIDE,),
        (
            operator("tanh", 0, (0,), WIDE),  # 1, which is returned
            operator("negative", 0, (1,), WIDE),  # 2
            operator("nn.softmax", 4, (1,), WIDE),  # 3
            operator("add", 1, (2, 3), WIDE),  # 4
        ),
        1,
        4,
    )
    tanh, softmax, add = kernels_of_program(whole)
    assert tanh.num_bytes == 2 * WIDE.num_bytes
    assert (softmax.family, softmax.num_bytes) == (Family.SOFTMAX, 2 * WIDE.num_bytes)
    assert add.num_bytes == 3 * WIDE.num_bytes, "reads what tanh and softmax made, writes the sum"


def test_views_cost_nothing_and_tables_only_their_rows() -> None:
    table, rows, picked = Tensor((5000, 64), "float32"), Tensor((8,), "int64"), Tensor((8, 64), "float32")
    turned = Tensor((64, 8), "float32")
    gathered = program(
        (table, rows), (operator("take", 2, (0, 1), picked), operator("permute_dims", 2, (2,), turned)), 3
    )
    (kernel,) = kernels_of_program(gathered)
    assert kernel.num_bytes == 2 * picked.num_bytes + rows.num_bytes
    assert (
        kernels_of_program(program((X,), (operator("reshape", 2, (0,), Tensor((64, 32), "float32")),), 1))
        == ()
    )


def test_attention_is_two_products_and_a_softmax() -> None:
    heads = Tensor((2, 16, 4, 8), "float32")
    whole = program((heads, heads, heads), (operator("nn.attention", 4, (0, 1, 2), heads),), 3)
    scores, softmax, mixed = kernels_of_program(whole)
    assert (scores.extents, softmax.extents, mixed.extents) == (
        (8, 16, 8, 16),
        (1, 128, 1, 16),
        (8, 16, 16, 8),
    )


def test_an_operator_never_measured_is_refused_by_name() -> None:
    image = Tensor((1, 8, 4, 4), "float32")
    filters = Tensor((8, 8, 3, 3), "float32")
    whole = program((image, filters), (operator("nn.conv2d", 4, (0, 1), image),), 2)
    with pytest.raises(CostModelError, match=r"nn\.conv2d are not among"):
        kernels_of_program(whole)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GpuKernelModel:
    return trained_gpu_model(tmp_path_factory)


def test_a_program_takes_what_its_kernels_take_and_its_interval_no_more_than_theirs(model) -> None:
    device = find_gpu("T4")
    whole = program(
        (X, WEIGHT, BIAS),
        (operator("matmul", 4, (0, 1), WIDE), operator("nn.softmax", 4, (3,), WIDE)),
        4,
    )
    (prediction,) = predict_programs(model, [whole], device)
    parts = model.predict([GpuQuery(kernel, device) for kernel in kernels_of_program(whole)])
    assert prediction.num_kernels == len(parts) == 2
    assert prediction.latency_us == pytest.approx(sum(part.latency_us for part in parts))
    above = [part.high_us - part.latency_us for part in parts]
    assert prediction.high_us - prediction.latency_us == pytest.approx(math.hypot(*above))
    assert prediction.low_us < prediction.latency_us
    assert prediction.is_known_device


def test_the_same_kernel_many_times_errs_every_time_alike(model) -> None:
    chain = tuple(operator("nn.softmax", 4, (index,), WIDE) for index in range(9))
    one, nine = (
        predict_programs(model, [program((WIDE,), chain[:count], count)], find_gpu("T4"))[0]
        for count in (1, 9)
    )
    assert nine.high_us / nine.latency_us == pytest.approx(one.high_us / one.latency_us)


def test_products_and_attention_in_16_bits_are_priced_by_their_type() -> None:
    """Only causal attention was measured: another has a context with as many pairs of tokens."""
    batch, length, heads, width = 2, 64, 8, 32
    query = Tensor((batch, length, heads, width), "bfloat16")
    key = Tensor((batch, length, 2, width), "bfloat16")
    flat, weight = Tensor((128, 256), "bfloat16"), Tensor((256, 64), "bfloat16")
    for mask, past in (("TopLeft", 0), ("None", length // 2)):
        attention = Operator(
            name="nn.attention",
            kind=4,
            inputs=(0, 1, 2),
            outputs=(query,),
            attributes=(("causal_mask", mask),),
        )
        (kernel,) = kernels_of_program(program((query, key, key), (attention,), 3))
        assert kernel.typed == Attention(batch, length, heads, 2, width, past)
        pairs = length * past + length * (length + 1) / 2
        assert pairs == pytest.approx(length * length if past else length**2 / 2, rel=0.02)
    product = operator("matmul", 4, (0, 1), Tensor((128, 64), "bfloat16"))
    whole = program((flat, weight), (product,), 2)
    (kernel,) = kernels_of_program(whole)
    assert kernel.typed == Product(128, 64, 256)
    (found,) = predict_programs(GpuKernelModel({}, {}, EMPTY), [whole], find_gpu("h100"))
    assert found.latency_us == pytest.approx(gpu_kernel_us(Product(128, 64, 256), "h100").latency_us)
    with pytest.raises(CostModelError, match="no kernels by data type are known for a GPU named 'T4'"):
        predict_programs(GpuKernelModel({}, {}, EMPTY), [whole], find_gpu("T4"))

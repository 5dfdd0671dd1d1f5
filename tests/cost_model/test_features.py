import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_physics import probes, product

from cost_model.features import FEATURE_NAMES, Query, feature_matrix, shape_key
from cost_model.roofline import device_speed
from records import Operator, Tensor
from records.workload import describe

SPEED = device_speed(record.measurement for record in probes())
EXTENTS = st.integers(1, 4096)


def query(workload, backend="blas", settings=""):
    return Query(workload=workload, backend=backend, settings=settings, num_threads=2, speed=SPEED)


def column(name, *queries):
    return feature_matrix(queries)[:, FEATURE_NAMES.index(name)].tolist()


@given(m=EXTENTS, n=EXTENTS, k=EXTENTS, epilogue=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_features_are_finite_and_name_the_canonical_product(m, n, k, epilogue):
    asked = query(product(m, n, k, epilogue=epilogue))
    matrix = feature_matrix([asked])
    assert matrix.shape == (1, len(FEATURE_NAMES))
    assert np.isfinite(matrix).all()
    for name, extent in (("log_m", m), ("log_n", n), ("log_k", k)):
        assert abs(2 ** column(name, asked)[0] - 1 - extent) < 1e-3 * (extent + 1)


def test_rows_do_not_depend_on_the_batch_they_stand_in():
    queries = [query(product(8 * i, 16, 32), backend) for i in range(1, 9) for backend in ("tvm", "blas")]
    together = feature_matrix(queries)
    apart = np.concatenate([feature_matrix([asked]) for asked in queries])
    assert np.array_equal(together, apart)


def test_backend_trials_and_weights_have_columns():
    workload = product(64, 64, 64)
    queries = [query(workload, "tvm"), query(workload, "mine"), query(workload, "metaschedule", "trials=63")]
    assert column("backend_tvm", *queries) == [1, 0, 0]
    assert column("backend_other", *queries) == [0, 1, 0]
    assert column("log_trials", *queries) == [0, 0, 6]
    assert column("weights_are_constant", queries[0]) == [1]


def test_shape_key_ignores_shapes_and_sees_operators():
    assert shape_key(product(8, 8, 8)) == shape_key(product(16, 4, 2))
    assert shape_key(product(8, 8, 8)) != shape_key(product(8, 8, 8, epilogue=1))


def convolution(groups):
    image, weight = (
        Tensor((1, 8, 14, 14), "float32"),
        Tensor((8, 8 // groups, 3, 3), "float32", constant=True),
    )
    operator = Operator(
        name="nn.conv2d",
        kind=4,
        inputs=(0, 1),
        outputs=(image,),
        attributes=(("groups", str(groups)), ("padding", "[1, 1, 1, 1]"), ("strides", "[1, 1]")),
        flops=2 * 14 * 14 * 8 * 9 * 8 // groups,
    )
    return describe("kernel", [image, weight], [operator], [2])


def test_a_convolution_in_groups_is_another_operator_than_a_dense_one():
    dense, depthwise = convolution(1), convolution(8)
    assert shape_key(dense) != shape_key(depthwise) == shape_key(convolution(4))
    channels = column("log_group_channels", query(dense), query(depthwise))
    assert channels == [np.float32(np.log2(9)), 1.0]


def test_a_transpose_reads_with_a_stride_only_where_the_last_axis_moves():
    def transposed(axes):
        given, made = Tensor((2, 4, 8, 16), "float32"), Tensor((2, 4, 8, 16), "float32")
        operator = Operator(
            name="permute_dims", kind=2, inputs=(0,), outputs=(made,), attributes=(("axes", axes),)
        )
        return query(describe("kernel", [given], [operator], [1]))

    moved, kept = column("log_strided_bytes", transposed("[0, 1, 3, 2]"), transposed("[0, 2, 1, 3]"))
    assert moved > 0 == kept


def test_a_transposed_operand_and_its_tile_have_columns():
    left, right = Tensor((128, 64), "float32"), Tensor((768, 64), "float32", constant=True)
    turned, made = Tensor((64, 768), "float32"), Tensor((128, 768), "float32")
    operators = [
        Operator(name="permute_dims", kind=2, inputs=(1,), outputs=(turned,), attributes=(("axes", "None"),)),
        Operator(name="matmul", kind=4, inputs=(0, 2), outputs=(made,), flops=2 * 128 * 64 * 768),
    ]
    transposed, plain = query(describe("kernel", [left, right], operators, [3])), query(product(128, 768, 64))
    assert column("left_is_transposed", transposed, plain) == [0, 0]
    assert column("right_is_transposed", transposed, plain) == [1, 0]
    assert column("tile_lanes", transposed, plain) == [16, 16]
    assert column("tile_packs", transposed, plain) == [1, 0]
    # Four rows of six vectors are all 24 registers.
    assert column("tile_registers", transposed, plain) == [24, 24]
    assert column("twos_in_rows", plain) == [7]


def test_extents_that_no_vector_divides_have_a_tile_only_where_padding_pays():
    padded, seldom_read = query(product(7, 13, 64)), query(product(3, 3, 64))
    assert column("tile_lanes", padded, seldom_read) == [16, 0]
    assert column("output_lanes", query(product(7, 13, 64)), query(product(7, 24, 64))) == [13, 12]

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_physics import probes, product

from cost_model.features import FEATURE_NAMES, Query, feature_matrix, shape_key
from cost_model.roofline import device_speed

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

import msgspec
import numpy as np
import pytest
from kernel_physics import many_records, product, true_latency_us

from cost_model.calibration import Training
from cost_model.dataset import load_dataset
from cost_model.errors import CostModelError
from cost_model.features import Query
from cost_model.gaussian_process import MAX_PROCESS_SAMPLES
from cost_model.intervals import group_quantile
from cost_model.kernel_model import load_kernel_model
from cost_model.kernel_training import train_kernel_model
from records import Operator, Tensor
from records.workload import describe


@pytest.fixture(scope="module")
def dataset():
    return load_dataset(many_records(300))


@pytest.fixture(scope="module")
def model(dataset):
    return train_kernel_model(dataset, seed=1, num_threads=1)


def unseen_queries(dataset, count=200):
    rng = np.random.default_rng(99)
    speed = dataset.samples[0].query.speed
    for _ in range(count):
        m, n, k = (int(2 ** rng.uniform(5, 9.5)) for _ in range(3))
        workload = product(m, n, k, epilogue=int(rng.integers(0, 4)))
        backend = ("blas", "tvm")[int(rng.integers(2))]
        yield Query(workload=workload, backend=backend, settings="", num_threads=2, speed=speed)


def test_unseen_shapes_are_predicted_and_intervals_cover_them(dataset, model):
    queries = list(unseen_queries(dataset))
    truth = np.array([true_latency_us(query.workload, query.backend) for query in queries])
    latency, low, high = model.predict_arrays(queries)
    assert np.median(np.abs(latency / truth - 1)) < 0.1
    assert ((low <= truth) & (truth <= high)).mean() >= 0.8
    assert ((low < latency) & (latency < high)).all()


def test_groups_count_alike_however_many_rows_they_have():
    scores = np.array([1.0] * 90 + [5.0, 6.0])
    groups = np.array([0] * 90 + [1, 2])
    assert group_quantile(scores, groups, 0.4) == 5.0
    assert group_quantile(scores, np.arange(92), 0.9) == 1.0


def test_of_few_samples_each_counts_alike_and_of_many_each_group(dataset):
    def training(count: int) -> Training:
        empty = np.zeros((count, 0), np.float32)
        labels = np.zeros(count)
        return Training(
            dataset=dataset,
            features=empty,
            labels=labels,
            base=labels,
            kernel=None,
            seed=0,
            num_threads=1,
        )

    groups = np.array([7, 7, 7, 8])
    few, many = training(MAX_PROCESS_SAMPLES), training(MAX_PROCESS_SAMPLES + 1)
    assert few.score_groups(groups).tolist() == [0, 1, 2, 3]
    assert many.score_groups(groups).tolist() == groups.tolist()
    assert few.num_folds > many.num_folds


@pytest.mark.parametrize("calibrated", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_training_is_reproducible(calibrated, dataset):
    model, again = (
        train_kernel_model(dataset, seed=1, calibrated=calibrated, num_threads=1) for _ in range(2)
    )
    queries = list(unseen_queries(dataset, 20))
    assert again.predict(queries) == model.predict(queries)
    assert again.manifest == model.manifest


def test_saved_model_predicts_the_same(dataset, model, tmp_path):
    model.save(tmp_path / "model")
    queries = list(unseen_queries(dataset, 20))
    again = load_kernel_model(tmp_path / "model")
    assert again.predict(queries) == model.predict(queries)
    assert msgspec.structs.replace(again.manifest, digests={}) == model.manifest


def test_few_samples_and_unseen_backends_are_refused(dataset, model):
    with pytest.raises(CostModelError, match="at least 50"):
        train_kernel_model(dataset.subset(range(10)))
    query = next(unseen_queries(dataset))
    other = Query(workload=query.workload, backend="cublas", settings="", num_threads=2, speed=query.speed)
    with pytest.raises(CostModelError, match="without the backend cublas"):
        model.predict([other])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("manifest.json", b"{", "not a cost model's manifest"),
        ("manifest.json", b'{"features_version": 4, "surprise": 2}', "not a cost model's manifest"),
        ("mean.json", b"not json", "is not the forest that its manifest names"),
        ("mean.json", None, "cannot be read as a model"),
        ("manifest.json", None, "holds no cost model"),
    ],
)
def test_damaged_model_is_refused(model, tmp_path, name, content, message):
    model.save(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CostModelError, match=message):
        load_kernel_model(tmp_path)


def test_a_model_of_version_4_is_read_unless_it_had_a_table_of_neighbours(dataset, tmp_path):
    train_kernel_model(dataset, calibrated=False, num_threads=1).save(tmp_path)
    manifest = tmp_path / "manifest.json"
    older = msgspec.json.decode(manifest.read_bytes()) | {"schema_version": 4}
    del older["process"]
    manifest.write_bytes(msgspec.json.encode(older))
    assert load_kernel_model(tmp_path).process is None
    manifest.write_bytes(msgspec.json.encode(older | {"neighbours": {"share": 0.5}}))
    with pytest.raises(CostModelError, match="tessel cost-model train"):
        load_kernel_model(tmp_path)


def test_model_of_other_features_is_refused(model, tmp_path):
    model.save(tmp_path)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"features_version": 4', '"features_version": 99'))
    with pytest.raises(CostModelError, match="version 99"):
        load_kernel_model(tmp_path)


def test_what_is_further_from_the_training_set_has_a_higher_novelty(dataset, model):
    known = dataset.samples[0].query
    speed = known.speed
    new_shape = product(37, 41, 43)
    one = Tensor((8, 8), "float32")
    new_combination = describe(
        "kernel", [one], [Operator(name="tanh", kind=0, inputs=(0,), outputs=(one,))], [1]
    )
    queries = [known] + [
        Query(workload=workload, backend="tvm", settings="", num_threads=2, speed=speed)
        for workload in (new_shape, new_combination)
    ]
    assert model.novelty(queries).tolist() == [0, 1, 2]

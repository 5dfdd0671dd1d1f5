"""A forest of trees in XGBoost's JSON, validated before XGBoost reads it.

XGBoost follows the node numbers of a file without bounds checks: a corrupted number crashes the process. A
file is therefore read into typed values here, every number is validated, and XGBoost is given a document
rewritten from those values alone. Features that this project does not train (categories, weights of a DART
booster) are refused. Checked in tests/cost_model/forests/test_forest_files.py, with changed files.

Source: the format is XGBoost's own, "Introduction to Model IO", section "JSON schema".
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

MAX_TREES = 10_000
"""Most trees of a forest; those that are trained here have 400 at most."""

MAX_NODES = 1 << 16
"""Most nodes of a tree; one of the depth 10 that is trained here has 2047."""

MAX_LEAF = 1e4
"""Largest value of a leaf or of what the leaves are added to: they are logarithms of latencies or ratios."""

_NO_PARENT = 2**31 - 1
_MAX_FLOAT32 = float(np.finfo(np.float32).max)
_PARAMETERS_BY_OBJECTIVE = {
    "reg:squarederror": ("reg_loss_param", "scale_pos_weight"),
    "reg:pseudohubererror": ("pseudo_huber_param", "huber_slope"),
}


class _TreeParameters(msgspec.Struct, frozen=True):
    num_deleted: str
    num_feature: str
    num_nodes: str
    size_leaf_vector: str


class _Tree(msgspec.Struct, frozen=True):
    base_weights: list[float]
    default_left: list[int]
    left_children: list[int]
    right_children: list[int]
    parents: list[int]
    loss_changes: list[float]
    split_conditions: list[float]
    split_indices: list[int]
    split_type: list[int]
    sum_hessian: list[float]
    categories: list[int]
    tree_param: _TreeParameters


class _ForestParameters(msgspec.Struct, frozen=True):
    num_parallel_tree: str
    num_trees: str


class _Trees(msgspec.Struct, frozen=True):
    gbtree_model_param: _ForestParameters
    iteration_indptr: list[int]
    tree_info: list[int]
    trees: list[_Tree]


class _Booster(msgspec.Struct, frozen=True):
    name: str
    model: _Trees


class _LearnerParameters(msgspec.Struct, frozen=True):
    base_score: str
    num_class: str
    num_feature: str
    num_target: str


class _Objective(msgspec.Struct, frozen=True):
    name: str
    reg_loss_param: dict[str, str] = {}
    pseudo_huber_param: dict[str, str] = {}


class _Learner(msgspec.Struct, frozen=True):
    gradient_booster: _Booster
    learner_model_param: _LearnerParameters
    objective: _Objective


class _Document(msgspec.Struct, frozen=True):
    learner: _Learner
    version: tuple[int, int, int]


_decoder = msgspec.json.Decoder(_Document)


def checked_forest(content: bytes, *, num_features: int, xgboost_version: str) -> bytes:
    """Return a document for XGBoost with the trees of a file, each number of which was checked.

    Args:
        num_features: features that the trees may ask for.
        xgboost_version: of the library that will read the document.

    Raises:
        ValueError: the file is no such forest; says what is wrong with it.
    """
    try:
        document = _decoder.decode(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    learner = document.learner
    booster, model = learner.gradient_booster, learner.gradient_booster.model
    major = int(xgboost_version.partition(".")[0])
    if document.version[0] != major or not all(0 <= number < 1000 for number in document.version):
        written = ".".join(map(str, document.version))
        raise ValueError(f"it was written by XGBoost {written}, and {xgboost_version} is installed")
    if booster.name != "gbtree":
        raise ValueError(f"its booster is {booster.name!r}, and only gbtree is used")
    if learner.learner_model_param.num_feature != str(num_features):
        raise ValueError(
            f"its trees have {learner.learner_model_param.num_feature} features and its manifest "
            f"{num_features}, so they are of different models"
        )
    if (learner.learner_model_param.num_class, learner.learner_model_param.num_target) != ("0", "1"):
        raise ValueError("it predicts several numbers, and only one is used")
    num_trees = len(model.trees)
    if not 1 <= num_trees <= MAX_TREES:
        raise ValueError(f"it has {num_trees} trees, and 1 to {MAX_TREES} are read")
    counts = model.gbtree_model_param
    if (
        (counts.num_parallel_tree, counts.num_trees) != ("1", str(num_trees))
        or model.iteration_indptr != list(range(num_trees + 1))
        or any(model.tree_info)
        or len(model.tree_info) != num_trees
    ):
        raise ValueError(f"its counts do not fit its {num_trees} trees")
    for number, tree in enumerate(model.trees):
        try:
            _check_tree(tree, num_features)
        except ValueError as error:
            raise ValueError(f"tree {number}: {error}") from error
    return msgspec.json.encode(_document(document, num_features))


def without_statistics(content: bytes) -> bytes:
    """Return a document of XGBoost's own without gains and weights of nodes, which no prediction asks for."""
    document = _decoder.decode(content)
    learner = document.learner
    model = learner.gradient_booster.model
    trees = [
        msgspec.structs.replace(
            tree,
            **{name: [0.0] * len(tree.parents) for name in ("base_weights", "loss_changes", "sum_hessian")},
        )
        for tree in model.trees
    ]
    booster = msgspec.structs.replace(
        learner.gradient_booster, model=msgspec.structs.replace(model, trees=trees)
    )
    kept = msgspec.structs.replace(
        document, learner=msgspec.structs.replace(learner, gradient_booster=booster)
    )
    return msgspec.json.encode(kept)


def _check_tree(tree: _Tree, num_features: int) -> None:
    size = len(tree.left_children)
    parameters = tree.tree_param
    if not 1 <= size <= MAX_NODES:
        raise ValueError(f"it has {size} nodes, and 1 to {MAX_NODES} are read")
    wanted = ("0", str(num_features), str(size), "1")
    found = parameters.num_deleted, parameters.num_feature, parameters.num_nodes, parameters.size_leaf_vector
    if found != wanted or tree.categories or any(tree.split_type):
        raise ValueError("its parameters do not fit its nodes")
    left, right, parents = (
        _whole_numbers(values, size) for values in (tree.left_children, tree.right_children, tree.parents)
    )
    _check_links(left, right, parents)
    features = _whole_numbers(tree.split_indices, size)
    if ((features < 0) | (features >= num_features)).any():
        raise ValueError(f"it asks for a feature beyond the {num_features} there are")
    _whole_numbers(tree.split_type, size)
    if not np.isin(_whole_numbers(tree.default_left, size), (0, 1)).all():
        raise ValueError("a default direction is neither left nor right")
    for values in (tree.base_weights, tree.loss_changes, tree.sum_hessian):
        _finite_numbers(values, size)
    thresholds = _finite_numbers(tree.split_conditions, size)
    if (np.abs(thresholds[left < 0]) > MAX_LEAF).any():
        raise ValueError(f"a leaf is larger than {MAX_LEAF:g}")


def _check_links(
    left: npt.NDArray[np.int64], right: npt.NDArray[np.int64], parents: npt.NDArray[np.int64]
) -> None:
    """Refuse what is no tree: every node but the first is the child of one node, which stands before it."""
    size = len(left)
    inner = np.flatnonzero(left != -1)
    if not np.array_equal(inner, np.flatnonzero(right != -1)):
        raise ValueError("a node has one child")
    children = np.concatenate([left[inner], right[inner]])
    owners = np.concatenate([inner, inner])
    if not np.array_equal(np.sort(children), np.arange(1, size)):
        raise ValueError("its nodes are not each the child of one other")
    if (children <= owners).any():
        raise ValueError("a child stands before its parent")
    if parents[0] != _NO_PARENT or not np.array_equal(parents[children], owners):
        raise ValueError("a node does not name its parent")


def _whole_numbers(values: list[int], size: int) -> npt.NDArray[np.int64]:
    if len(values) != size:
        raise ValueError(f"it has {size} nodes, but {len(values)} values of some kind for them")
    try:
        return np.asarray(values, dtype=np.int64)
    except OverflowError as error:
        raise ValueError("a number of a node is beyond 64 bits") from error


def _finite_numbers(values: list[float], size: int) -> npt.NDArray[np.float64]:
    if len(values) != size:
        raise ValueError(f"it has {size} nodes, but {len(values)} values of some kind for them")
    found = np.asarray(values, dtype=np.float64)
    if not (np.abs(found) <= _MAX_FLOAT32).all():
        raise ValueError("a value is beyond what XGBoost keeps")
    return found


def _document(document: _Document, num_features: int) -> dict[str, object]:
    learner = document.learner
    model = learner.gradient_booster.model
    base_score = _number(learner.learner_model_param.base_score.strip("[]"), "base score")
    if abs(base_score) > MAX_LEAF:
        raise ValueError(f"its base score {base_score} is larger than {MAX_LEAF:g}")
    return {
        "learner": {
            "attributes": {},
            "feature_names": [],
            "feature_types": [],
            "gradient_booster": {
                "model": {
                    "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
                    "gbtree_model_param": model.gbtree_model_param,
                    "iteration_indptr": model.iteration_indptr,
                    "tree_info": model.tree_info,
                    "trees": [_tree(number, tree) for number, tree in enumerate(model.trees)],
                },
                "name": "gbtree",
            },
            "learner_model_param": {
                "base_score": f"[{base_score!r}]",
                "boost_from_average": "0",
                "num_class": "0",
                "num_feature": str(num_features),
                "num_target": "1",
            },
            "objective": _objective(learner.objective),
        },
        "version": document.version,
    }


def _tree(number: int, tree: _Tree) -> dict[str, object]:
    kept = {name: getattr(tree, name) for name in tree.__struct_fields__}
    kinds = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
    return {**kept, **{kind: [] for kind in kinds}, "id": number}


def _objective(objective: _Objective) -> dict[str, object]:
    if objective.name not in _PARAMETERS_BY_OBJECTIVE:
        raise ValueError(f"its objective is {objective.name[:80]!r}, which is never trained here")
    group, name = _PARAMETERS_BY_OBJECTIVE[objective.name]
    value = _number(getattr(objective, group).get(name, "1"), name)
    if not 0 < value <= MAX_LEAF:
        raise ValueError(f"its {name} is {value}, which is no scale")
    return {"name": objective.name, group: {name: repr(value)}}


def _number(text: str, name: str) -> float:
    try:
        value = float(text[:64])
    except ValueError as error:
        raise ValueError(f"its {name} {text[:64]!r} is no number") from error
    if not math.isfinite(value):
        raise ValueError(f"its {name} is {value}, which is no number")
    return value

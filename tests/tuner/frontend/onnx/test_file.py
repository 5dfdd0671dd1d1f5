"""ONNX files: what TVM computes against onnx's own reference, and what is refused.

The files that onnx ships ("light") hold architectures without trained weights: every weight is made by a
`ConstantOfShape`. The tests put random weights in their place, so that a swapped or dropped tensor shows.
"""

from pathlib import Path

import numpy as np
import pytest

from tuner.errors import ModelFileError, UnsupportedOperatorError
from tuner.frontend import load_model, random_inputs, random_parameter

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip
from onnx.reference import ReferenceEvaluator  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.onnx]

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def with_random_weights(name: str, path: Path) -> Path:
    """Write a shipped architecture to the path, with random numbers instead of constant weights."""
    model = onnx.load(str(LIGHT / f"light_{name}.onnx"))
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    variances = {node.input[4] for node in model.graph.node if node.op_type == "BatchNormalization"}
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        (output,) = node.output
        suffix = ".running_var" if output in variances else ".filter"
        value = random_parameter(output + suffix, tuple(shapes[node.input[0]]), "float32", 0)
        model.graph.initializer.append(numpy_helper.from_array(value, output))
    if kept[-1].op_type == "Softmax":
        # Before version 13 it flattens all later axes, which onnx's reference does not: compare its input.
        model.graph.output[0].name = kept.pop().input[0]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    onnx.save(model, str(path))
    return path


SMALL_IMAGE = {"data_0": (1, 3, 64, 64)}


@pytest.mark.slow
def test_shipped_architecture_computes_what_the_reference_computes(
    tmp_path: Path, run_model, assert_close
) -> None:
    path = with_random_weights("squeezenet", tmp_path / "model.onnx")
    model = load_model(str(path), shapes=SMALL_IMAGE)
    inputs = random_inputs(model, 0)
    (expected,) = ReferenceEvaluator(onnx.load(str(path))).run(None, {"data_0": inputs[0]})
    assert_close(run_model(model, inputs, model.parameters)[0], expected)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        pytest.param("shufflenet", {}, marks=pytest.mark.slow),
        pytest.param("densenet121", SMALL_IMAGE, marks=pytest.mark.slow),
        pytest.param("resnet50", {}, marks=pytest.mark.slow),
        pytest.param("inception_v1", {}, marks=pytest.mark.slow),
        pytest.param("inception_v2", {}, marks=pytest.mark.slow),
        pytest.param("bvlc_alexnet", {}, marks=pytest.mark.slow),
        pytest.param("zfnet512", {}, marks=pytest.mark.slow),
    ],
)
def test_shipped_architecture_computes_what_torch_computes(
    name: str, shapes: dict[str, tuple[int, ...]], tmp_path: Path, run_model, assert_close, evaluate_onnx
) -> None:
    path = with_random_weights(name, tmp_path / "model.onnx")
    model = load_model(str(path), shapes=shapes)
    inputs = random_inputs(model, 0)
    expected = evaluate_onnx(onnx.load(str(path)), {model.inputs[0].name: inputs[0]})
    assert_close(run_model(model, inputs, model.parameters)[0], expected)


@pytest.mark.parametrize(
    "name",
    [
        *("squeezenet", "shufflenet", "inception_v1"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("resnet50", "densenet121", "inception_v2")),
    ],
)
def test_shipped_architecture_becomes_one_data_flow_of_operators(name: str) -> None:
    model = load_model(str(LIGHT / f"light_{name}.onnx"))
    (block,) = model.module["main"].body.blocks
    assert len(model.module.functions) == 1
    assert len(model.module_paths) == len(block.bindings)
    assert set(model.parameters) == set(model.parameter_names)


def shipped_cases(folder: str, *marks: pytest.MarkDecorator) -> list:
    paths = sorted((LIGHT.parent / folder).glob("*/model.onnx"))
    return [pytest.param(path.parent, id=path.parent.name, marks=marks) for path in paths]


REFUSED = {
    "test_expand_shape_model1": "Expand",
    "test_expand_shape_model2": "Expand",
    "test_expand_shape_model3": "broadcast_to",
    "test_expand_shape_model4": "broadcast_to",
    "test_gradient_of_add": "Gradient",
    "test_gradient_of_add_and_mul": "Gradient",
    "test_sequence_model1": "SequenceInsert",
    "test_sequence_model2": "SequenceErase",
    "test_sequence_model3": "SequenceErase",
    "test_sequence_model8": "leaves open",
    "test_strnorm": "StringNormalizer",
}
"""What the message names, by the start of the name of each shipped case that is refused."""


@pytest.mark.parametrize(
    "folder",
    [
        *shipped_cases("pytorch-operator"),
        *shipped_cases("simple"),
        *shipped_cases("pytorch-converted", pytest.mark.slow),
    ],
)
def test_shipped_case_gives_its_stored_results_or_is_refused_by_name(
    folder: Path, run_model, assert_close
) -> None:
    reasons = [REFUSED[name] for name in (folder.name, folder.name[:12]) if name in REFUSED]
    if reasons:
        with pytest.raises((UnsupportedOperatorError, ValueError), match=reasons[0]):
            load_model(str(folder / "model.onnx"))
        return
    model = load_model(str(folder / "model.onnx"))
    data = folder / "test_data_set_0"
    inputs = [read_tensor(data / f"input_{index}.pb") for index in range(len(model.inputs))]
    for index, found in enumerate(run_model(model, inputs, model.parameters)):
        expected = read_tensor(data / f"output_{index}.pb")
        assert np.array_equal(np.isnan(found), np.isnan(expected))
        assert_close(np.nan_to_num(found), np.nan_to_num(expected))


def read_tensor(path: Path) -> np.ndarray:
    return numpy_helper.to_array(onnx.load_tensor(str(path)))


def save(path: Path, nodes, inputs, outputs, initializers=(), opset: int = 17) -> str:
    graph = helper.make_graph(nodes, "test", inputs, outputs, list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.save(model, str(path))
    return str(path)


def floats(name: str, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def test_expansion_to_a_constant_shape_is_static(tmp_path: Path, run_model) -> None:
    """As heads of keys are repeated in Llama and Qwen2 files: TVM's importer reads the shape as it runs."""
    shape = numpy_helper.from_array(np.array([3, 2, 4], "int64"), "shape")
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["wide"]),
        helper.make_node("Abs", ["shape"], ["other"]),
        helper.make_node("Reshape", ["wide", "other"], ["y"]),
    ]
    path = save(tmp_path / "expand.onnx", nodes, [floats("x", (2, 1))], [floats("y", (3, 2, 4))], [shape])
    given = np.array([[1.0], [2.0]], "float32")
    (found,) = run_model(load_model(path), [given], {})
    np.testing.assert_array_equal(found, np.broadcast_to(given, (3, 2, 4)))


def test_layers_are_read_from_names_of_nodes(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((4, 4), "float32"), "h.0.attn.weight")
    nodes = [
        helper.make_node("MatMul", ["x", "h.0.attn.weight"], ["a"], name="/h.0/attn/MatMul"),
        helper.make_node("Relu", ["a"], ["y"], name="/h.0/Relu"),
    ]
    path = save(tmp_path / "m.onnx", nodes, [floats("x", [2, 4])], [floats("y", [2, 4])], [weight])
    model = load_model(path)
    assert model.module_paths == ("h.0.attn", "h.0")
    assert model.parameter_names == ("h.0.attn.weight",)
    assert np.array_equal(model.parameters["h.0.attn.weight"], np.ones((4, 4)))


def test_nodes_stand_for_layers_where_names_tell_of_none(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((4, 4), "float32"), "w")
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], name="fc6_1", transB=1, alpha=0.5),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, [floats("x", [2, 4])], [floats("y", [2, 4])], [weight])
    model = load_model(path)
    assert not any(model.module_paths)  # what the file can be cut at is as before
    assert list(dict.fromkeys(model.layers_by_variable().values())) == ["fc6_1", "output"]


def test_container_repeated_in_its_items_is_named_once(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="/blocks.0/head/head.1/Relu")]
    path = save(tmp_path / "m.onnx", nodes, [floats("x", [2, 4])], [floats("y", [2, 4])])
    assert load_model(path).module_paths == ("blocks.0.head.1",)


@pytest.mark.parametrize(
    ("scopes", "path"),
    [("['', 'h', 'h.0', 'h.0.attn', 'add']", "h.0.attn"), ("['', 'add']", ""), ("[]", ""), ("add", "")],
)
def test_layers_are_read_from_the_scopes_of_torchs_exporter(scopes: str, path: str, tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="node_relu")
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    file = save(tmp_path / "m.onnx", [node], [floats("x", [2, 4])], [floats("y", [2, 4])])
    assert load_model(file).module_paths == (path,)


def test_indices_stay_below_the_table_they_select_from(tmp_path: Path) -> None:
    table = numpy_helper.from_array(np.ones((7, 4), "float32"), "table")
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 3])
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, [ids], [floats("y", None)], [table])
    model = load_model(path, shapes={"ids": (2, 3)})
    assert model.inputs[0].shape == (2, 3)
    assert model.inputs[0].high == 7


def test_logits_of_a_file_are_trained_by_cross_entropy(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((4, 5), "float32"), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, [floats("x", [2, 4])], [floats("y", [2, 5])], [weight])
    model = load_model(path, training=True)
    assert [spec.name for spec in model.inputs] == ["x", "labels"]
    assert model.inputs[1].high == 5
    assert len(model.module["main"].ret_ty.shape) == 0


def test_batch_of_a_file_is_a_matter_of_its_shapes() -> None:
    with pytest.raises(ValueError, match=r"batch is 2.*light_squeezenet\.onnx.*for data_0"):
        load_model(str(LIGHT / "light_squeezenet.onnx"), batch=2)


def test_operator_that_the_importer_lacks_is_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("StringNormalizer", ["x"], ["y"])]
    strings = helper.make_tensor_value_info("x", TensorProto.STRING, [2])
    output = helper.make_tensor_value_info("y", TensorProto.STRING, [2])
    path = save(tmp_path / "m.onnx", nodes, [strings], [output])
    with pytest.raises(UnsupportedOperatorError, match=r"StringNormalizer, which m\.onnx uses"):
        load_model(path)


def test_long_names_of_operators_are_quoted_in_part(tmp_path: Path) -> None:
    nodes = [helper.make_node("Q" * 100_000 + str(index), ["x"], ["y"]) for index in range(20)]
    tensor = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    path = save(tmp_path / "m.onnx", nodes, [tensor], [output])
    with pytest.raises(UnsupportedOperatorError, match="and 12 more, which") as refused:
        load_model(path)
    assert len(str(refused.value)) < 3000


def test_operator_whose_shape_depends_on_values_is_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    output = helper.make_tensor_value_info("y", TensorProto.INT64, [1, None])
    path = save(tmp_path / "m.onnx", nodes, [floats("x", [4])], [output])
    with pytest.raises(UnsupportedOperatorError, match="nonzero"):
        load_model(path)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x09\x12"])
def test_file_that_is_no_model_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"m\.onnx"):
        load_model(str(path))


def test_truncated_file_is_refused_by_name(tmp_path: Path) -> None:
    whole = (LIGHT / "light_squeezenet.onnx").read_bytes()
    path = tmp_path / "m.onnx"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileError, match=r"m\.onnx"):
        load_model(str(path))


def test_missing_file_is_refused_by_name() -> None:
    with pytest.raises(ModelFileError, match=r"nowhere\.onnx"):
        load_model("nowhere.onnx")


@pytest.mark.parametrize("length", [0, 3])
def test_the_first_token_of_a_decoder_has_no_past(
    length: int, tmp_path: Path, run_model, assert_close
) -> None:
    """Attention to a cache that is open, with the longer cache as a second result."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["key"]),
        helper.make_node("Concat", ["past", "key"], ["present"], axis=1),
        helper.make_node("Transpose", ["present"], ["keys"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "keys"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "present"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in tensors.items()]
        for tensors in (
            {"past": [1, "length", 4], "x": [1, 2, 4]},
            {"y": [1, 2, 4], "present": [1, "longer", 4]},
        )
    )
    weight = numpy_helper.from_array(rng.standard_normal((4, 4), "float32"), "w")
    path = tmp_path / "decoder.onnx"
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    model = load_model(str(path), shapes={"past": (1, length, 4)})
    given = [rng.standard_normal(shape, "float32") for shape in ((1, length, 4), (1, 2, 4))]
    expected = ReferenceEvaluator(onnx.load(str(path))).run(
        None, dict(zip(("past", "x"), given, strict=True))
    )
    for found, true in zip(run_model(model, given, model.parameters), expected, strict=True):
        assert found.shape == true.shape
        assert_close(found, true)

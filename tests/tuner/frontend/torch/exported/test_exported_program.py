"""Exported programs: files that run code when torch opens them run none here, and others load as before."""

import contextlib
import io
import json
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tuner.errors import ModelFileError, UnsupportedOperatorError  # noqa: E402 - after the skip
from tuner.frontend import load_model  # noqa: E402
from tuner.frontend.torch.exported.exported_program import load_program  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

Members = dict[str, bytes]


class Small(torch.nn.Module):
    """A weight, a constant, a buffer that is expanded, an open extent, a graph inside, a tree of results."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 4, bias=False)
        self.head.weight = self.layer.weight
        self.register_buffer("places", torch.arange(4).expand(3, 4))
        self.scale = torch.tensor([1.5, 2.0])

    def forward(self, x, *, twice):
        with torch.no_grad():
            y = self.layer(x)
        return {"y": torch.cat([y, x], 1) * self.scale[0], "rest": [self.head(x), twice + self.places[0, 1]]}


def small_program():
    batch = torch.export.Dim("batch", min=2, max=64)
    return torch.export.export(
        Small().eval(),
        (torch.randn(4, 4),),
        {"twice": torch.ones(8)},
        dynamic_shapes={"x": {0: batch}, "twice": {0: 2 * batch}},
    )


@pytest.fixture(scope="module")
def members() -> Members:
    """The entries of a program's archive, which all tests alter."""
    buffer = io.BytesIO()
    torch.export.save(small_program(), buffer)
    with zipfile.ZipFile(buffer) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def packed(members: Members, root: str = "archive/") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(root + name, content)
    return buffer.getvalue()


def changed(members: Members, change: Callable[[dict], None], entry: str = "models/model.json") -> bytes:
    document = json.loads(members[entry])
    change(document)
    return packed(members | {entry: json.dumps(document).encode()})


class Touches:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


def as_torch_saves(marker: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save((Touches(marker),), buffer)
    return buffer.getvalue()


def touch(marker: Path) -> str:
    return f"__import__('pathlib').Path('{marker}').touch()"


def in_sample_inputs(members, marker):
    return packed(members | {"data/sample_inputs/model.pt": as_torch_saves(marker)})


def in_old_weights(members, marker):
    return packed(members | {"data/weights/model.pt": as_torch_saves(marker)})


def in_old_constants(members, marker):
    return packed(members | {"data/constants/model.pt": as_torch_saves(marker)})


def in_weight(members, marker):
    pickled = members | {"data/weights/weight_9": as_torch_saves(marker)}

    def change(document):
        document["config"]["layer.weight"] |= {"use_pickle": True, "path_name": "weight_9"}

    return changed(pickled, change, "data/weights/model_weights_config.json")


def in_constant(members, marker):
    pickled = members | {"data/constants/tensor_0": as_torch_saves(marker)}

    def change(document):
        document["config"]["scale"]["use_pickle"] = True

    return changed(pickled, change, "data/constants/model_constants_config.json")


def in_opaque_constant(members, marker):
    pickled = members | {"data/constants/opaque_obj_0": pickle.dumps(Touches(marker))}

    def change(document):
        document["config"]["scale"] |= {
            "path_name": "opaque_obj_0",
            "use_pickle": True,
            "tensor_meta": None,
        }

    return changed(pickled, change, "data/constants/model_constants_config.json")


def extents_of(document: dict) -> list:
    values = document["graph_module"]["graph"]["tensor_values"].values()
    return [extent["as_expr"] for value in values for extent in value["sizes"] if "as_expr" in extent]


def in_symbol(members, marker):
    def change(document):
        for extent in extents_of(document):
            extent["expr_str"] = touch(marker)

    return changed(members, change)


def in_assumption(members, marker):
    def change(document):
        for extent in extents_of(document):
            extent["expr_str"] = f"Symbol('s7', integer={touch(marker)})"

    return changed(members, change)


def in_name_of_input(members, marker):
    """Names of inputs become parameters of a function in Python, and a parameter may have a default."""
    evil = f"twice={touch(marker)}"
    return packed(
        members
        | {"models/model.json": members["models/model.json"].replace(b'"twice"', json.dumps(evil).encode())}
    )


def in_target(members, marker):
    """A call of a function that torch happens to import, which runs when the program is decomposed."""

    def change(document):
        node = document["graph_module"]["graph"]["nodes"][-1]
        node["target"] = "torch.os.mkdir"
        node["inputs"] = [{"name": "", "arg": {"as_string": str(marker)}, "kind": 1}]

    return changed(members, change)


def in_operator_argument(members, marker):
    """An argument that names a function is looked up in torch likewise."""

    def change(document):
        graph = document["graph_module"]["graph"]
        node = next(node for node in graph["nodes"] if "higher_order" in node["target"])
        node["target"] = "torch.utils._pytree.tree_map"
        node["inputs"] = [
            {"name": "", "arg": {"as_operator": "torch.os.mkdir"}, "kind": 1},
            {"name": "", "arg": {"as_strings": [str(marker)]}, "kind": 1},
        ]

    return changed(members, change)


def in_file_operator(members, marker):
    """An operator of ATen that maps a file into memory, and creates it where it is missing."""

    def change(document):
        node = document["graph_module"]["graph"]["nodes"][-1]
        node["target"] = "torch.ops.aten.from_file.default"
        arguments = {
            "filename": {"as_string": str(marker)},
            "shared": {"as_bool": True},
            "size": {"as_int": 8},
        }
        node["inputs"] = [{"name": name, "arg": arg, "kind": 2} for name, arg in arguments.items()]

    return changed(members, change)


def in_tree_of(kind: str, context: object) -> Callable[[dict], None]:
    leaf = {"type": None, "context": None, "children_spec": []}
    tree = [1, {"type": kind, "context": context, "children_spec": [leaf]}]

    def change(document):
        document["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = json.dumps(tree)

    return change


def in_key_of_tree(members, marker):
    """torch imports the module of a key that is said to be an enumeration's."""
    (marker.parent / "touching_key.py").write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()")
    key = json.dumps([{"__enum__": True, "fqn": "touching_key:Key", "name": "A"}])
    return changed(members, in_tree_of("builtins.dict", key))


def in_default_of_tree(members, marker):
    (marker.parent / "touching_default.py").write_text(
        f"from pathlib import Path\nPath({str(marker)!r}).touch()"
    )
    context = {
        "default_factory_module": "touching_default",
        "default_factory_name": "make",
        "dict_context": [],
    }
    return changed(members, in_tree_of("collections.defaultdict", context))


def in_guard(members, marker):
    def change(document):
        document["guards_code"] = [touch(marker)]

    return changed(members, change)


def in_old_format(members, marker):
    """What torch wrote up to 2.7: three pickles beside the program."""
    evil = as_torch_saves(marker)
    names = ("serialized_state_dict.pt", "serialized_constants.pt", "serialized_example_inputs.pt")
    old = {"version": b"8.20", "serialized_exported_program.json": members["models/model.json"]}
    return packed(old | dict.fromkeys(names, evil), root="")


def in_old_example_inputs(members, marker):
    old = {
        "version": b"8.20",
        "serialized_exported_program.json": members["models/model.json"],
        "serialized_state_dict.pt": saved_tensors("state_dict"),
        "serialized_constants.pt": saved_tensors("constants"),
        "serialized_example_inputs.pt": as_torch_saves(marker),
    }
    return packed(old, root="")


def saved_tensors(which: str) -> bytes:
    buffer = io.BytesIO()
    torch.save(dict(getattr(small_program(), which)), buffer)
    return buffer.getvalue()


RUN_BY_TORCH = [
    in_sample_inputs,
    in_old_weights,
    in_old_constants,
    in_weight,
    in_constant,
    in_opaque_constant,
    in_symbol,
    in_assumption,
    in_name_of_input,
    in_key_of_tree,
    in_default_of_tree,
    in_guard,
    in_old_format,
    in_old_example_inputs,
]
EXPLOITS = [*RUN_BY_TORCH, in_target, in_operator_argument, in_file_operator]
"""The last three are found by torch itself, but only by a check that comes after the names are looked up."""


def open_as_torch_does(content: bytes) -> None:
    """Do what loading a model did before: read with torch's own reader, then take the program apart."""
    program = torch.export.load(io.BytesIO(content))
    program.run_decompositions({})
    program.module()


@pytest.mark.parametrize("exploit", EXPLOITS, ids=lambda exploit: exploit.__name__)
def test_code_in_a_file_is_never_run(
    exploit, members: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    marker = tmp_path / "marker"
    content = exploit(members, marker)
    with contextlib.suppress(Exception):  # any refusal will do; what counts is the marker
        program = load_program(content)
        program.run_decompositions({})
        program.module()
    assert not marker.exists()
    assert not {"touching_key", "touching_default"} & sys.modules.keys()


@pytest.mark.parametrize("exploit", RUN_BY_TORCH, ids=lambda exploit: exploit.__name__)
def test_code_in_these_files_is_run_by_the_reader_of_torch(
    exploit, members: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files above are real: with torch's own reader the marker appears."""
    monkeypatch.syspath_prepend(str(tmp_path))
    marker = tmp_path / "marker"
    with contextlib.suppress(
        Exception
    ):  # after the code has run, torch may find that the file makes no sense
        open_as_torch_does(exploit(members, marker))
    for name in ("touching_key", "touching_default"):
        sys.modules.pop(name, None)
    assert marker.exists()


def test_file_with_code_is_refused_by_name(members: Members, tmp_path: Path) -> None:
    path = tmp_path / "evil.pt2"
    path.write_bytes(in_symbol(members, tmp_path / "marker"))
    with pytest.raises(
        ModelFileError, match=r"evil\.pt2 is not an exported.*stands in a symbolic|calls what"
    ):
        load_model(str(path))
    path.write_bytes(in_target(members, tmp_path / "marker"))
    with pytest.raises(UnsupportedOperatorError, match=r"evil\.pt2.*'torch\.os\.mkdir'"):
        load_model(str(path))
    assert not (tmp_path / "marker").exists()


def outputs_of(program) -> list:
    inputs = (torch.linspace(0, 1, 16).reshape(4, 4),)
    result = program.module()(*inputs, twice=torch.arange(8.0))
    return [result["y"], *result["rest"]]


def test_program_with_everything_legal_computes_what_it_did(members: Members) -> None:
    content = packed(members | {"data/extra/notes.txt": b"\xff not even text"})
    expected = outputs_of(torch.export.load(io.BytesIO(packed(members))))
    program = load_program(content)
    for found, wanted in zip(outputs_of(program), expected, strict=True):
        assert torch.equal(found, wanted)
    weight = program.state_dict["layer.weight"]
    assert weight.data_ptr() == program.state_dict["head.weight"].data_ptr()
    assert isinstance(weight, torch.nn.Parameter)


def test_program_of_the_old_format_computes_what_it_did(members: Members) -> None:
    program = small_program()
    state = io.BytesIO()
    torch.save(dict(program.state_dict), state)
    constants = io.BytesIO()
    torch.save(dict(program.constants), constants)
    old = {
        "version": b"8.20",
        "serialized_exported_program.json": members["models/model.json"],
        "serialized_state_dict.pt": state.getvalue(),
        "serialized_constants.pt": constants.getvalue(),
        "serialized_example_inputs.pt": b"",
    }
    for found, wanted in zip(
        outputs_of(load_program(packed(old, root=""))), outputs_of(program), strict=True
    ):
        assert torch.equal(found, wanted)


def test_range_of_an_expression_does_not_stop_a_model(members: Members, tmp_path: Path) -> None:
    """torch writes such a range, and fails on it itself."""
    path = tmp_path / "open.pt2"
    path.write_bytes(packed(members))
    model = load_model(str(path), shapes={"x": (4, 4), "twice": (8,)})
    assert [spec.shape for spec in model.inputs] == [(4, 4), (8,)]


def with_extent(members: Members, sizes: list[int], strides: list[int]) -> bytes:
    def change(document):
        meta = document["config"]["layer.bias"]["tensor_meta"]
        meta["sizes"] = [{"as_int": number} for number in sizes]
        meta["strides"] = [{"as_int": number} for number in strides]

    return changed(members, change, "data/weights/model_weights_config.json")


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [
        ([10**9, 10**6], [0, 0]),  # a view of one number, copied later
        ([10**12], [1]),
        ([2**40, 2**40], [1, 1]),
        ([4], [10**15]),
        ([4], [-1]),
        ([-4], [1]),
    ],
)
def test_tensor_larger_than_its_bytes_is_refused(members: Members, sizes, strides) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        load_program(with_extent(members, sizes, strides))


@pytest.mark.parametrize(
    ("entry", "content", "message"),
    [
        ("models/model.json", b"[" * 100_000, "is no JSON"),
        ("models/model.json", b'{"graph_module": 5}', "stands where"),
        ("models/model.json", b"{}", "lacks a key"),
        ("archive_format", b"zip", "none that torch"),
        ("data/weights/weight_0", b"abc", "whole number"),
        ("data/weights/model_weights_config.json", b'{"config": {"a\'b": 5}}', "stands where"),
    ],
)
def test_damaged_program_says_what_is_wrong(members, entry: str, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_program(packed(members | {entry: content}))


def test_compiled_library_is_not_loaded(members: Members) -> None:
    held = {"archive_format": b"pt2", "archive_version": b"1", "data/aotinductor/model/a.so": b"\x7fELF"}
    with pytest.raises(ValueError, match="compiled library, which is never loaded"):
        load_program(packed(held))


class Grouped(torch.nn.Module):
    """Rows times the matrices of their groups, as models with experts export it."""

    def forward(self, rows, matrices, ends):
        return torch.ops.transformers.grouped_mm_fallback(rows, matrices, offs=ends)


def test_grouped_products_are_stood_in_for(tmp_path) -> None:
    pytest.importorskip("transformers.integrations.moe")
    matrices = torch.nn.Parameter(torch.randn(3, 5, 4))
    rows, ends = torch.randn(8, 5), torch.tensor([2, 2, 7])
    path = tmp_path / "experts.pt2"
    torch.export.save(torch.export.export(Grouped(), (rows, matrices, ends)), path)
    loaded = load_program(path.read_bytes())
    called = {str(node.target) for node in loaded.graph.nodes if node.op == "call_function"}
    assert called == {"tessel.grouped_mm_fallback.default"}
    found, expected = loaded.module()(rows, matrices, ends), Grouped()(rows, matrices, ends)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(8, 4)
    (mine,) = torch.autograd.grad((found * weights).sum(), matrices)
    (theirs,) = torch.autograd.grad((expected * weights).sum(), matrices)
    torch.testing.assert_close(mine, theirs)
    assert load_model(str(path)).inputs[0].shape == (8, 5)

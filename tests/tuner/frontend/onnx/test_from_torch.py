"""Files that torch's own exporter writes, with dynamic axes as people export them."""

import warnings
from pathlib import Path

import pytest

from tuner.frontend import load_model, random_inputs

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
nn = torch.nn

pytestmark = [pytest.mark.tvm, pytest.mark.onnx, pytest.mark.torch]


class Patches(nn.Module):
    """Convolution, flattening that reads shapes as the model runs, attention, and a container."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 5))

    def forward(self, image):
        x = torch.relu(self.norm(self.stem(image))).flatten(2).transpose(1, 2)
        return self.head(self.encoder(x).mean(1))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 50)

    def forward(self, ids):
        positions = torch.arange(ids.shape[1])
        x = self.table(ids) + self.table(positions)
        return self.head(torch.tanh(self.layer(x)))


@pytest.mark.parametrize(
    ("module", "example", "shape"),
    [
        (Patches(), torch.zeros(2, 3, 8, 8), (3, 3, 8, 8)),
        (Tokens(), torch.zeros(2, 7, dtype=torch.long), (1, 5)),
    ],
)
def test_exported_module_computes_what_torch_computes(
    module, example, shape: tuple[int, ...], tmp_path: Path, run_model, assert_close
) -> None:
    path = str(tmp_path / "module.onnx")
    axes = {"x": {axis: f"extent{axis}" for axis in range(len(shape)) if shape[axis] != example.shape[axis]}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            (example,),
            path,
            dynamo=False,
            input_names=["x"],
            dynamic_axes=axes,
            opset_version=17,
        )
    model = load_model(path, shapes={"x": shape})
    inputs = random_inputs(model, 0)
    with torch.no_grad():
        expected = module(torch.from_numpy(inputs[0]))
    (found,) = run_model(model, inputs, model.parameters)
    assert_close(found, expected.numpy())
    assert any(path.startswith("head") for path in model.module_paths)

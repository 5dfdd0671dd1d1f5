"""Fourier transforms of ONNX are NumPy's and torch's, of any length, along any axis and of any part."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tuner.errors import UnsupportedOperatorError
from tuner.frontend import Model, load_model

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.onnx, pytest.mark.torch]


def as_parts(values: np.ndarray) -> np.ndarray:
    return np.stack([values.real, values.imag], axis=-1).astype("float32")


def as_complex(values: np.ndarray) -> np.ndarray:
    return values[..., 0] + 1j * values[..., 1]


def model_of(
    folder: Path,
    kind: str,
    shape: tuple[int, ...],
    constants: list[np.ndarray | None],
    *,
    opset: int = 20,
    **attributes: object,
) -> Model:
    """Return the model of one operator of the input x and of constants; None is one that is left out."""
    names = ["" if value is None else f"c{place}" for place, value in enumerate(constants)]
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", *names], ["y"], **attributes)],
        "spectrum",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(value, name)
            for value, name in zip(constants, names, strict=True)
            if value is not None
        ],
    )
    path = folder / "spectrum.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)
    return load_model(str(path), guarded=False)


FEW = ((-2, None), (1, 5), (1, 6), (0, 16))
"""Axes and lengths that are tried always."""


@pytest.mark.parametrize(
    ("axis", "length"),
    [
        pytest.param(axis, length, marks=() if (axis, length) in FEW else pytest.mark.slow)
        for axis in (-2, 1, 0)
        for length in (None, 5, 6, 16)
    ],
)
def test_a_transform_is_numpys(
    axis: int, length: int | None, tmp_path: Path, run_model: Callable, assert_close: Callable
) -> None:
    x = np.random.default_rng(0).standard_normal((4, 7, 9, 2)).astype("float32")
    given = None if length is None else np.array(length)
    place = axis % 4
    transforms = {
        (): (x, as_parts(np.fft.fft(as_complex(x), n=length, axis=place))),
        ("inverse",): (x, as_parts(np.fft.ifft(as_complex(x), n=length, axis=place))),
        ("onesided",): (x[..., :1], as_parts(np.fft.rfft(x[..., 0], n=length, axis=place))),
        ("inverse", "onesided"): (x, np.fft.irfft(as_complex(x), n=length, axis=place)[..., None]),
    }
    for flags, (data, expected) in transforms.items():
        model = model_of(tmp_path, "DFT", data.shape, [given, np.array(axis)], **dict.fromkeys(flags, 1))
        assert_close(run_model(model, [data], model.parameters)[0], expected)


def test_the_axis_was_an_attribute_whose_default_was_the_first(
    tmp_path: Path, run_model: Callable, assert_close: Callable
) -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 6, 2)).astype("float32")
    old = model_of(tmp_path, "DFT", x.shape, [], opset=17)
    assert_close(run_model(old, [x], old.parameters)[0], as_parts(np.fft.fft(as_complex(x), axis=1)))
    new = model_of(tmp_path, "DFT", x.shape, [], opset=20)
    assert_close(run_model(new, [x], new.parameters)[0], as_parts(np.fft.fft(as_complex(x), axis=2)))


@pytest.mark.parametrize("is_half", [True, False])
@pytest.mark.parametrize("with_window", [True, False])
def test_spectra_of_frames_are_torchs(
    is_half: bool, with_window: bool, tmp_path: Path, run_model: Callable, assert_close: Callable
) -> None:
    x = np.random.default_rng(0).standard_normal((2, 50, 1)).astype("float32")
    window = np.hanning(16).astype("float32") if with_window else None
    model = model_of(
        tmp_path,
        "STFT",
        x.shape,
        [np.array(5), window, None if with_window else np.array(16)],
        onesided=int(is_half),
    )
    expected = torch.stft(
        torch.from_numpy(x[..., 0]),
        n_fft=16,
        hop_length=5,
        window=torch.ones(16) if window is None else torch.from_numpy(window),
        center=False,
        onesided=is_half,
        return_complex=True,
    ).transpose(1, 2)
    assert_close(run_model(model, [x], model.parameters)[0], as_parts(expected.numpy()))


def test_a_length_that_only_values_say_is_refused(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("DFT", ["x", "n"], ["y"])],
        "spectrum",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 5, 1]),
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    path = tmp_path / "open.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    with pytest.raises(UnsupportedOperatorError, match="its length is known only when the model runs"):
        load_model(str(path), guarded=False)

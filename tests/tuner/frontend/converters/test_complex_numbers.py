"""Complex numbers: torch's, as pairs of real ones."""

import pytest

torch = pytest.importorskip("torch")

from tuner.errors import UnsupportedOperatorError  # noqa: E402 - after the skip
from tuner.frontend.torch.program import import_module  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


def rotate(x, angles):
    turns = torch.polar(torch.ones_like(angles), angles)[:, None]
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * turns
    return torch.view_as_real(pairs).flatten(-2)


def test_complex_numbers_are_torchs(assert_as_torch, draws) -> None:
    x, angles = draws(3, 2, 8), draws(3, 4)
    cases = {
        "rotation": (rotate, (x, angles)),
        "magnitude": (lambda a, b: torch.complex(a, b).abs(), (angles, angles + 1)),
        "multiple": (
            lambda a, b: torch.view_as_real((torch.complex(a, b) * a * 2).transpose(0, 1)),
            (angles, -angles),
        ),
        "conjugate": (
            lambda a: torch.view_as_real((c := torch.complex(a, -a), c * c.conj())[1] + c),
            (angles,),
        ),
    }
    assert_as_torch(cases)


def test_other_uses_are_refused_by_name() -> None:
    class Spectrum(torch.nn.Module):
        def forward(self, x):
            return torch.fft.rfft(x).abs()

    with pytest.raises(UnsupportedOperatorError, match=r"operator _fft_r2c\.default .*`return torch\.fft"):
        import_module(Spectrum(), (torch.randn(8),), "spectrum")

"""Complex numbers: torch's, as pairs of real ones."""

import pytest

torch = pytest.importorskip("torch")


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


def test_other_uses_stay_calls_of_torch(assert_as_torch) -> None:
    assert_as_torch({"a spectrum": (lambda x: torch.fft.rfft(x).abs(), (torch.randn(8),))})

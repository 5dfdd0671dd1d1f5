"""Views, joins, parts, padding and tensors made of nothing: torch's elements in torch's places."""

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


def test_moved_elements_are_torchs(assert_as_torch, draws) -> None:
    x, n, b = draws(3, 5, 4), draws(3, 5, 4, dtype="int64"), draws(4, 5, dtype="bool")
    cases = {
        "slices": (lambda x: x[:, 1:-1, ::2], (x,)),
        "slice beyond": (lambda x: x[5:, :100] if x.shape[0] > 5 else x[-100:2, :100], (x,)),
        "negative start": (lambda x: x[:, -2:], (x,)),
        "narrow": (lambda x: x.narrow(1, -3, 2), (x,)),
        "split": (lambda x: x.split(2, 1), (x,)),
        "split by sizes": (lambda x: x.split([1, 3, 1], 1), (x,)),
        "chunks": (lambda x: x.chunk(3, -2), (x,)),
        "unbind": (lambda x: x.unbind(0), (x,)),
        "stack": (lambda x: torch.stack([x, x * 2], -1), (x,)),
        "joined types": (lambda x, n: torch.cat([x, n], 1), (x, n)),
        "joined with nothing": (lambda x: torch.cat([torch.empty(0), x[0]], 0), (x,)),
        "flip": (lambda x: x.flip(0, -1), (x,)),
        "roll": (lambda x: x.roll((1, -2), (0, 2)), (x,)),
        "roll of all": (lambda x: x.roll(3), (n,)),
        "repeat": (lambda x: x.repeat(2, 1, 3), (x,)),
        "repeat with more axes": (lambda x: x.repeat(2, 1, 1, 1), (x,)),
        "interleaved": (lambda x: x.repeat_interleave(3, 1), (x,)),
        "tile": (lambda x: x.tile(2), (n,)),
        "expand": (lambda x: x[:1].expand(4, -1, 4), (x,)),
        "lower triangle": (lambda x: x.tril(-1), (x,)),
        "upper triangle of truth": (lambda x: x.triu(1), (b,)),
        "lower triangle of whole numbers": (lambda x: x.tril(), (n,)),
        "diagonal": (lambda x: x.diagonal(1, 1, 2), (x,)),
        "diagonal below": (lambda x: x.diagonal(-1, 0, -1), (x,)),
        "matrix of a diagonal": (lambda x: torch.diag_embed(x), (x,)),
        "windows": (lambda x: x.unfold(1, 3, 2), (x,)),
        "transposed": (lambda x: x.transpose(-1, 0), (x,)),
        "moved axis": (lambda x: x.movedim(0, -1), (x,)),
        "squeezed": (lambda x: x[:1].squeeze(0).unsqueeze(-1), (x,)),
        "replaced slice": (lambda x: x.slice_scatter(x[:, :2] * 2, 1, 0, 4, 2), (x,)),
        "replaced diagonal": (lambda x: x.diagonal_scatter(x[:, 0, :3], 1, 1, -1), (x,)),
        "replaced diagonal below": (lambda x: x.diagonal_scatter(x[0, :, :3] * 3, -1, 2, 0), (x,)),
        "replaced diagonal without elements": (
            lambda x: x.diagonal_scatter(x[0, :, :0], 2, 0, 2),
            (x[:, :, :2],),
        ),
        "replaced column": (lambda x: x.select_scatter(x[:, 0] * 3, 1, -1), (x,)),
        "changed in place": (lambda x: x.clone()[:, 1:3].mul_(2).sum() + x.sum(), (x,)),
        "written in place": (lambda x: (y := x.clone(), y[:, 1].fill_(7.0), y)[-1], (x,)),
        "strided": (lambda x: x.contiguous().as_strided((3, 2), (2, 5), 1), (x,)),
        "as truth": (lambda x: x.bool(), (x * n,)),
        "as whole numbers": (lambda x: (x * 3).to(torch.int32), (x,)),
        "no elements": (lambda x: (x[:0].sum(0), x[:, :0].mean(0).shape[0] + x[:0].sum()), (x,)),
    }
    assert_as_torch(cases)


def test_padding_is_torchs(assert_as_torch, draws) -> None:
    x = draws(2, 3, 4, 5)
    cases = {
        "numbers": (lambda x: F.pad(x, (1, 2, 0, 3), value=1.5), (x,)),
        "less than nothing": (lambda x: F.pad(x, (-1, 2, 1, -1)), (x,)),
        "of truth": (lambda x: F.pad(x, (1, 1), value=True), (x > 0,)),
        "of whole numbers": (lambda x: F.pad(x, (0, 2), value=-3), ((x * 5).long(),)),
        "reflected": (lambda x: F.pad(x, (1, 2, 2, 0), mode="reflect"), (x,)),
        "repeated": (lambda x: F.pad(x, (1, 2, 2, 0), mode="replicate"), (x,)),
        "around": (lambda x: F.pad(x, (1, 2, 2, 0), mode="circular"), (x,)),
    }
    assert_as_torch(cases)


def test_tensors_made_of_nothing_are_torchs(assert_as_torch, draws) -> None:
    x, b = draws(3, 5), draws(3, 5, dtype="bool")
    cases = {
        "ones of another type": (lambda x: x.new_ones(2, 3, dtype=torch.bool), (x,)),
        "zeros of a type": (lambda x: x.new_zeros(4), (b,)),
        "full of a type": (lambda x: torch.full_like(x, 2, dtype=torch.int64), (x,)),
        "positions of a mask": (lambda x: x.cumsum(-1) - 1, (b,)),
        "numbers": (lambda x: torch.arange(2, 9, 3) + x.long().sum(), (x,)),
        "unit matrix": (lambda x: torch.eye(3) @ x, (x,)),
        "steps": (lambda x: x + torch.linspace(-1, 1, 5), (x,)),
        "mask of the future": (lambda x: x.masked_fill(torch.ones(3, 5).triu(1).bool(), -1e9), (x,)),
        "grid": (
            lambda x: torch.stack(torch.meshgrid(torch.arange(3), torch.arange(5), indexing="ij")) + x.long(),
            (x,),
        ),
        "large": (
            lambda x: torch.zeros(200, 200, dtype=torch.float64).sum() + torch.ones(300, 100).mean() + x,
            (x,),
        ),
        "a constant alone": (lambda x: torch.arange(5), (x,)),
    }
    assert_as_torch(cases)

"""Programs for several shapes: a causal language model's prompts of any length, batches, what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

import tessel  # noqa: E402 - after the skips
from examples.own_model import LanguageModel  # noqa: E402
from tessel.compiling.partitioning import compile_within  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.tvm]

RULES: dict[str, Any] = {"seconds": 0, "threads": 1, "backends": ["tvm"]}
LENGTHS = (16, 4, 8)

IN_A_FRESH_PROCESS = """
import sys
import numpy as np
import tessel
program = tessel.load(sys.argv[1])
np.savez(sys.argv[2], *[program(ids) for ids in np.load(sys.argv[3]).values()])
print([name for name in sys.modules if name.startswith(("tuner.tuning", "tvm."))])
"""


def ids(length: int, seed: int = 0) -> Any:
    return torch.randint(0, 50, (1, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def module() -> Any:
    torch.manual_seed(0)
    return LanguageModel(vocabulary=50, width=32, num_heads=2, num_layers=1).eval()


@pytest.fixture(scope="module")
def program(module: Any) -> tessel.Program:
    return compile_within(
        module,
        ids(16),
        shape=[{"token_ids": (1, length)} for length in LENGTHS],
        pad={"token_ids": 7},
        **RULES,
    )


def test_a_prompt_of_any_length_runs_and_gives_the_modules_values(
    program: tessel.Program, module: Any
) -> None:
    with torch.no_grad():
        for length in range(1, 17):
            prompt = ids(length, length)
            found = program(prompt)
            assert found.shape == (1, length, 50)
            torch.testing.assert_close(found, module(prompt), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(program(prompt.numpy()[:, :5].copy()), program(prompt[:, :5]).numpy())


def test_what_fits_no_program_is_refused_with_the_shapes_that_there_are(program: tessel.Program) -> None:
    known = r"there are programs for \[1, 4\], \[1, 8\], \[1, 16\], or any that one of these holds"
    for shape in ((1, 17), (2, 4), (1, 0), (4,)):
        with pytest.raises(ValueError, match=rf"input 'token_ids' has shape .*{known}"):
            program(torch.zeros(shape, dtype=torch.int64))
    with pytest.raises(TypeError, match="input 'token_ids' is of float32"):
        program(torch.zeros(1, 4))
    with pytest.raises(TypeError, match="input 'token_ids' is a list"):
        program([1, 2])


def test_one_file_holds_all_and_weights_that_they_have_alike_once(
    program: tessel.Program, tmp_path: Path
) -> None:
    every = program.save(tmp_path / "every.tessel")
    alone = [each.save(tmp_path / "alone.tessel") for each in program.programs]
    libraries = [len(each.write_library()) for each in program.programs]
    assert every < sum(libraries) + 1.5 * (alone[0] - libraries[0])
    in_memory = {weight.ctypes.data for each in program.programs for weight in each.compiled.weights}
    assert len(in_memory) < sum(len(each.compiled.weights) for each in program.programs)
    loaded = tessel.load(tmp_path / "every.tessel")
    assert repr(loaded) == repr(program)
    assert loaded.explain() == program.explain()
    assert loaded.save(tmp_path / "again.tessel") == every
    assert (tmp_path / "again.tessel").read_bytes() == (tmp_path / "every.tessel").read_bytes()

    prompts = [ids(length).numpy() for length in (3, 8, 16)]
    np.savez(tmp_path / "given.npz", *prompts)
    names = [str(tmp_path / name) for name in ("every.tessel", "found.npz", "given.npz")]
    done = subprocess.run(
        [sys.executable, "-c", IN_A_FRESH_PROCESS, *names], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    with np.load(tmp_path / "found.npz") as found:
        for prompt, logits in zip(prompts, found.values(), strict=True):
            np.testing.assert_array_equal(logits, program(prompt))


class Attending(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Attends to every position that a mask shows, or to all; also gives one row for each example."""

    def __init__(self, *, is_masked: bool) -> None:
        super().__init__()
        self.is_masked = is_masked

    def forward(self, data: Any, mask: Any) -> tuple[Any, Any]:
        scores = data @ data.mT
        if self.is_masked:
            scores = scores.masked_fill(~mask[:, None, :], -1e9)
        found = torch.softmax(scores, -1) @ data
        return found, (found * mask[..., None]).sum(1)


def attending(*, is_masked: bool) -> tessel.Program:
    shapes: list[dict[str, tuple[int, ...]]] = [
        {"data": (batch, length, 8), "mask": (batch, length)} for batch, length in ((4, 6), (1, 5))
    ]
    example = torch.randn(4, 6, 8), torch.ones(4, 6, dtype=torch.bool)
    return compile_within(
        Attending(is_masked=is_masked), example, shape=shapes, pad={"data": 0.0, "mask": False}, **RULES
    )


def test_batch_and_length_are_padded_together_behind_a_mask() -> None:
    program, module = attending(is_masked=True), Attending(is_masked=True)
    for batch, length in ((1, 5), (1, 3), (2, 6), (3, 4)):
        data, mask = torch.randn(batch, length, 8), torch.rand(batch, length) > 0.3
        found, expected = program(data=data, mask=mask), module(data, mask)
        for one, other, rows in zip(found, expected, (mask, mask.any(1)), strict=True):
            torch.testing.assert_close(one[rows], other[rows], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"grows with several inputs, which have \[2, 3\] there"):
        program(torch.zeros(2, 5, 8), torch.ones(3, 5, dtype=torch.bool))


def test_padding_that_changes_results_is_refused_when_it_is_compiled() -> None:
    with pytest.raises(ValueError, match=r"result 0 for inputs of .* is another one when they are padded"):
        attending(is_masked=False)


@pytest.mark.parametrize(
    ("shape", "pad", "message"),
    [
        ([{"input": (2, 16)}], {"input": 0}, "padding needs several shapes"),
        ([], {}, "shape is an empty list"),
        ([{"input": (2, 16)}, {"input": (4, 16)}], {"data": 0}, "names 'data', which is no input; they are"),
        (
            [{"input": (2, 16)}, {"input": (3, 8)}],
            {"input": 0},
            r"axis 0 of result 0 has extents \[24, 32\], which no padded input has",
        ),
    ],
)
def test_wrong_shapes_are_refused(shape: Any, pad: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compile_within(
            torch.nn.Flatten(0) if message.startswith("axis") else torch.nn.ReLU(),
            torch.zeros(4, 16),
            shape=shape,
            pad=pad,
            **RULES,
        )

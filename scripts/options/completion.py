"""Shell completion: names of models, sizes, backends, targets, shapes and schedules.

Importing TVM takes longer than one waits for a completion, so the names that it stands behind are written
down here; tests/scripts/options/test_completion.py holds them against the real ones. Targets of a vendor are
asked of TVM itself, once their name has begun. Where nothing fits, the shell completes files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

MODELS = {
    "gpt2": ("tiny", "small", "medium", "large"),
    "bert": ("tiny", "base", "large"),
    "mt5": ("tiny", "small", "base"),
    "flava": ("tiny", "base"),
    "resnet": ("tiny", "50", "101"),
    "mobilenet": ("tiny", "v2"),
    "mlp": ("tiny", "small", "large"),
}
"""Sizes by name of the zoo."""

BACKENDS = (
    "tvm",
    "blas",
    "torch",
    "onnxruntime",
    "packed_matmul",
    "attention",
    "nhwc",
    "metaschedule",
    "cublas",
    "cudnn",
    "cutlass",
    "tensorrt",
    "dnnl",
)
_TARGETS = ("cpu", "cuda")
_VENDORS = ("arm/", "aws/", "nvidia/", "raspberry-pi/", "riscv/")

Complete = Callable[[str], list[str]]


def models(incomplete: str) -> list[str]:
    """Return models of the zoo, with their sizes once the colon is there."""
    name, colon, _ = incomplete.partition(":")
    sized = [f"{name}:{size}" for size in MODELS.get(name, ())]
    return _beginning(incomplete, sized if colon else MODELS)


def backends(incomplete: str) -> list[str]:
    """Return backends that may follow those named already."""
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return [f"{before}{comma}{name}" for name in _beginning(last, BACKENDS) if name not in given]


def targets(incomplete: str) -> list[str]:
    """Return targets; the tags of a vendor once its name is whole."""
    if "/" in incomplete:
        from tuner.targets.resolution import known_targets

        return _beginning(incomplete, known_targets())
    return _beginning(incomplete, (*_TARGETS, *_VENDORS))


def shapes(incomplete: str) -> list[str]:
    """Return the shapes that `tessel schedule` knows."""
    from tessel.shapes import SHAPES

    return _beginning(incomplete, SHAPES)


def model_placements(incomplete: str) -> list[str]:
    """Return the placements of a model."""
    return _beginning(
        incomplete, ("vshape", "interleaved:2", "zbv", "xshape", "mshape", "nnshape", "kshape", "auto")
    )


def schedules(incomplete: str) -> list[str]:
    """Return schedules of a comparison that may follow those named already."""
    from tessel.handwritten import HANDWRITTEN

    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    names = ("ours", *(rule.name for rule in HANDWRITTEN))
    return [f"{before}{comma}{name}" for name in _beginning(last, names) if name not in given]


def torchtitan_releases(incomplete: str) -> list[str]:
    """Return releases of torchtitan that files are written for."""
    from tessel.exports.torchtitan import RELEASES

    return _beginning(incomplete, RELEASES)


def one_of(*names: str) -> Complete:
    """Return what completes one of a few names."""
    return lambda incomplete: _beginning(incomplete, names)


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]

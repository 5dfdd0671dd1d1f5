"""A trained network on disk: weights as safetensors, and a manifest that says how they were trained.

The weights' file is named by its content, and the manifest that names it is replaced at once; so a folder
always holds the last complete network. Nothing but JSON and safetensors is read. Checked in
tests/tuner/language/test_model_files.py.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import tempfile
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from tuner.errors import ModelFileError
from tuner.language.network import Network, NetworkShape
from tuner.language.vocabulary import VOCABULARY_VERSION
from tuner.targets.target import Target

SCHEMA_VERSION = 1
MANIFEST = "language_model.json"

_TIED = "lm_head.weight"
"""The same tensor as the input embedding's; safetensors keeps each once."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a network is, and what it was trained on.

    Attributes:
        schema_version: of this document.
        vocabulary_version: of the tokens that its weights stand for.
        shape: of the network.
        weights: name of the file beside the manifest.
        digest: of that file, 32 hexadecimal digits.
        target: canonical text of the target whose schedules it learnt.
        device_model: processor that they were measured on.
        num_threads: of the measurements.
        seed: of its initial weights and of all random numbers.
        families: of the random kernels that it was pre-trained on.
        num_texts: unmeasured schedules that it was pre-trained on, each counted once.
        num_kernels: kernels whose measured trials it was fine-tuned on; 0 before that.
        num_trials: those trials.
        num_best: the best of them, which it learnt.
        versions: (distribution, version) pairs of what trained it.
    """

    schema_version: int = SCHEMA_VERSION
    vocabulary_version: int = VOCABULARY_VERSION
    shape: NetworkShape
    weights: str = ""
    digest: str = ""
    target: str
    device_model: str
    num_threads: int
    seed: int
    families: tuple[str, ...]
    num_texts: int
    num_kernels: int = 0
    num_trials: int = 0
    num_best: int = 0
    versions: tuple[tuple[str, str], ...] = ()


def save_network(network: Network, manifest: Manifest, folder: Path) -> Manifest:
    """Write a network to a folder in place of the one there, and return its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().contiguous()
        for name, tensor in network.model.state_dict().items()
        if name != _TIED
    }
    content = save_tensors(tensors)
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    whole = msgspec.structs.replace(
        manifest, weights=f"weights-{digest}.safetensors", digest=digest, versions=_versions()
    )
    _write_whole(folder / whole.weights, content)
    text = msgspec.json.format(msgspec.json.encode(whole, order="sorted"), indent=1)
    _write_whole(folder / MANIFEST, text)
    for path in folder.glob("weights-*.safetensors"):
        if path.name != whole.weights:
            path.unlink(missing_ok=True)
    return whole


def load_manifest(folder: Path) -> Manifest:
    """Read what a folder's network is.

    Raises:
        ModelFileError: there is none, or one of another version.
    """
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
        # The versions first: what else a manifest of another one holds, nobody knows here.
        found = msgspec.json.decode(content, type=_Versioned)
        for name, value, wanted in (
            ("schema_version", found.schema_version, SCHEMA_VERSION),
            ("vocabulary_version", found.vocabulary_version, VOCABULARY_VERSION),
        ):
            if value != wanted:
                raise ModelFileError(
                    f"{path} has {name} {value}, this installation reads {wanted}; train it again with "
                    "`tessel language train`"
                )
        return msgspec.json.decode(content, type=Manifest)
    except OSError as error:
        raise ModelFileError(
            f"{folder} holds no language model ({error.strerror or error}); make one with "
            "`tessel language train`"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFileError(
            f"{path} is not a language model's manifest: {str(error)[:300]}; make one with "
            "`tessel language train`"
        ) from error


def load_network(folder: Path, target: Target) -> tuple[Network, Manifest]:
    """Read a network that was trained for a target.

    Raises:
        ModelFileError: it is missing, unreadable, of another version or target, or its files do not fit.
    """
    manifest = load_manifest(folder)
    if (manifest.target, manifest.num_threads) != (target.text, target.num_threads):
        raise ModelFileError(
            f"the language model in {folder} was trained for {manifest.target[:200]!r} with "
            f"{manifest.num_threads} threads, not for {target.text} with {target.num_threads}; train one for "
            "it, or give --target and --threads as it was trained"
        )
    if manifest.weights != f"weights-{manifest.digest}.safetensors" or not manifest.digest.isalnum():
        raise ModelFileError(
            f"the manifest in {folder} names weights {manifest.weights[:200]!r}, not as its digest does, "
            "so they may be another's; train the model again with `tessel language train`"
        )
    path = folder / manifest.weights
    try:
        content = path.read_bytes()
        tensors = load_tensors(content)
    except (OSError, SafetensorError) as error:
        raise ModelFileError(
            f"{path} cannot be read as weights ({error}); train the model again with `tessel language train`"
        ) from error
    if hashlib.blake2b(content, digest_size=16).hexdigest() != manifest.digest:
        raise ModelFileError(
            f"{path} is not the file that its manifest names, by its digest; copy the whole folder again"
        )
    _check_size(manifest.shape, len(content), path)
    network = Network(manifest.shape)
    _fill(network, tensors, path)
    return network, manifest


def _check_size(shape: NetworkShape, num_bytes: int, path: Path) -> None:
    """Refuse a shape that the weights cannot be of, before a network of that shape is made."""
    least = 4 * 12 * shape.layers * shape.width**2  # of a transformer's matrices alone, in 32-bit floats
    if least > num_bytes:
        raise ModelFileError(
            f"{path} has {num_bytes} bytes, and a network of {shape.layers} layers of width {shape.width} "
            f"has at least {least}; train the model again with `tessel language train`"
        )


def _fill(network: Network, tensors: dict[str, torch.Tensor], path: Path) -> None:
    wanted = {name: value.shape for name, value in network.model.state_dict().items() if name != _TIED}
    if {name: value.shape for name, value in tensors.items()} != wanted:
        raise ModelFileError(
            f"{path} holds weights of another shape than its manifest says; train the model again with "
            "`tessel language train`"
        )
    network.model.load_state_dict(tensors, strict=False)
    network.model.tie_weights()


def _versions() -> tuple[tuple[str, str], ...]:
    names = ("apache-tvm", "torch", "transformers")
    return tuple((name, importlib.metadata.version(name)) for name in names)


def _write_whole(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


class _Versioned(msgspec.Struct):
    schema_version: int
    vocabulary_version: int

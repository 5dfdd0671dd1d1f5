"""A language model on disk: a manifest, and its weights as bare numbers in the order of the tensors.

The weights' file is named by its content, and the manifest that names it is replaced at once; so a folder
always holds the last complete network. Its length follows from the manifest's shape, so that there is nothing
in it to parse. Checked in tests/cost_model/language/test_model_files.py.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np

from cost_model.errors import CostModelFileError
from cost_model.language.network import Floats, Network, NetworkShape
from cost_model.language.text import TEXT_VERSION
from records.output import write_output

SCHEMA_VERSION = 2
MANIFEST = "language_model.json"

_AGAIN = "train it with `tessel language train`"


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a network is, and what it was trained on.

    Attributes:
        schema_version: of this document.
        text_version: of the tokens that its weights stand for.
        shape: of the network.
        weights: name of the file beside the manifest.
        digest: of that file, 32 hexadecimal digits.
        target: canonical text of the target whose schedules it learnt.
        device_model: processor that they were measured on.
        num_threads: of the measurements.
        seed: of its initial weights and of all random numbers.
        num_distilled: kernels that nobody measured, whose schedules the draft model chose.
        num_kernels: kernels with measured trials.
        num_trials: those trials.
        num_best: trials near the best of their kernel, which it learnt.
        num_packed: trials of packed kernels, of which earlier versions learnt; 0 since.
        rounds: rounds of writing, measuring and training again after the first training.
        held_out_loss: lowest loss on kernels held out, in nats a decision; null where none was.
    """

    schema_version: int = SCHEMA_VERSION
    text_version: int = TEXT_VERSION
    shape: NetworkShape
    weights: str = ""
    digest: str = ""
    target: str
    device_model: str
    num_threads: int
    seed: int
    num_distilled: int = 0
    num_kernels: int = 0
    num_trials: int = 0
    num_best: int = 0
    num_packed: int = 0
    rounds: int = 0
    held_out_loss: float | None = None


class _Versioned(msgspec.Struct):
    schema_version: int
    text_version: int = 0


def save_network(network: Network, manifest: Manifest, folder: Path) -> Manifest:
    """Write a network to a folder in place of the one there, and return its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    content = b"".join(
        np.ascontiguousarray(network.weights[name], dtype="<f4").tobytes() for name in network.shape.tensors
    )
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    whole = msgspec.structs.replace(
        manifest, shape=network.shape, weights=f"weights-{digest}.f32", digest=digest
    )
    write_output(folder / whole.weights, content)
    text = msgspec.json.format(msgspec.json.encode(whole, order="sorted"), indent=1)
    write_output(folder / MANIFEST, text)
    for path in folder.glob("weights-*"):
        if path.name != whole.weights:
            path.unlink(missing_ok=True)
    return whole


def load_language_manifest(folder: Path) -> Manifest:
    """Read what a folder's network is.

    Raises:
        CostModelFileError: there is none, or one of another version.
    """
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
        # The versions first: what else a manifest of another one holds, nobody knows here.
        found = msgspec.json.decode(content, type=_Versioned)
        for name, value, wanted in (
            ("schema_version", found.schema_version, SCHEMA_VERSION),
            ("text_version", found.text_version, TEXT_VERSION),
        ):
            if value != wanted:
                raise CostModelFileError(
                    f"{path} has {name} {value}, this installation reads {wanted}; {_AGAIN} again"
                )
        return msgspec.json.decode(content, type=Manifest)
    except OSError as error:
        raise CostModelFileError(
            f"{folder} holds no language model ({error.strerror or error}); {_AGAIN}"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CostModelFileError(
            f"{path} is not a language model's manifest: {str(error)[:300]}; {_AGAIN}"
        ) from error


def load_network(folder: Path, target: str, num_threads: int) -> tuple[Network, Manifest]:
    """Read a network that was trained for a target.

    Args:
        folder: that `save_network` wrote.
        target: canonical text of the target.
        num_threads: that a kernel may use.

    Raises:
        CostModelFileError: it is missing, of another version or target, or its files do not fit.
    """
    manifest = load_language_manifest(folder)
    if (manifest.target, manifest.num_threads) != (target, num_threads):
        raise CostModelFileError(
            f"the language model in {folder} was trained for {manifest.target[:200]!r} with "
            f"{manifest.num_threads} threads, not for {target} with {num_threads}; train one for it, or give "
            "--target and --threads as it was trained"
        )
    if manifest.weights != f"weights-{manifest.digest}.f32" or not manifest.digest.isalnum():
        raise CostModelFileError(
            f"the manifest in {folder} names weights {manifest.weights[:200]!r}, not as its digest does, so "
            f"they may be another's; {_AGAIN} again"
        )
    path = folder / manifest.weights
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CostModelFileError(
            f"{path} cannot be read ({error.strerror or error}); {_AGAIN} again"
        ) from error
    if hashlib.blake2b(content, digest_size=16).hexdigest() != manifest.digest:
        raise CostModelFileError(
            f"{path} is not the file that its manifest names, by its digest; copy the whole folder again"
        )
    numbers = np.frombuffer(content, dtype="<f4") if len(content) % 4 == 0 else np.zeros(0, "<f4")
    if len(numbers) != manifest.shape.num_parameters or not np.isfinite(numbers).all():
        raise CostModelFileError(
            f"{path} has {len(content)} bytes, and its network has {manifest.shape.num_parameters} finite "
            f"numbers of 4 each; {_AGAIN} again"
        )
    return Network(manifest.shape, _tensors(manifest.shape, numbers)), manifest


def _tensors(shape: NetworkShape, numbers: Floats) -> dict[str, Floats]:
    found, start = {}, 0
    for name, extents in shape.tensors.items():
        size = int(np.prod(extents))
        found[name] = numbers[start : start + size].reshape(extents).astype(np.float32)
        start += size
    return found

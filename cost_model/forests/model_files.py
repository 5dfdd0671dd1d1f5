"""A model on disk: forests in XGBoost's own JSON, with a manifest of their provenance.

The manifest is written last and removed first, so a folder with a manifest is a complete model. It contains
the digest of each forest, so that a modified forest or one of another model is detected. An attacker can
change the digest too: protection against malicious files is in `forest_files`. Nothing but JSON is read.
Checked through tests/cost_model/test_kernel_model.py and test_stage_model.py.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from cost_model.errors import CostModelFileError
from cost_model.forests.boosting import xgboost
from cost_model.forests.forest_files import checked_forest, without_statistics
from records.output import write_output

_PACKED = ".gz"

TRAINING = "tessel cost-model train"
"""The command that makes most models."""

MAX_FOREST_BYTES, MAX_MANIFEST_BYTES = 256 * 2**20, 64 * 2**20
"""Forests trained on tens of thousands of kernels have some 30 MiB, manifests a few."""


class ModelManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every saved model needs to be trusted again.

    Attributes:
        features_version: version of the features it was trained on.
        feature_names: their names in order.
        coverage: share of intervals meant to hold the truth.
        num_samples: samples trained on.
        records_digest: names the set of record ids it rests on.
        last_record_id: newest record it rests on.
        versions: versions of what trained it.
        seed: seed of its training.
        digests: of the forests' files by name; empty until the model is saved.
    """

    features_version: int
    feature_names: tuple[str, ...]
    coverage: float
    num_samples: int
    records_digest: str
    last_record_id: int
    versions: tuple[tuple[str, str], ...]
    seed: int
    digests: dict[str, str] = {}


T = TypeVar("T", bound=ModelManifest)


def save_model(
    folder: Path,
    manifest_name: str,
    manifest: ModelManifest,
    boosters: Mapping[str, Any],
    *,
    compressed: bool = False,
) -> None:
    """Write forests as `NAME.json`, and the manifest with their digests after them; files appear whole.

    Args:
        folder: of the model; made if it is missing.
        manifest_name: name of the manifest's file.
        manifest: what is said of the model.
        boosters: forests by name.
        compressed: whether to write `NAME.json.gz` instead, without what only training asks for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / manifest_name).unlink(missing_ok=True)
    digests = {}
    for name, booster in boosters.items():
        content = bytes(booster.save_raw("json"))
        if compressed:
            content = without_statistics(content)
        digests[name] = _digest(content)
        # No time in the file: equal models are equal files.
        packed = gzip.compress(content, mtime=0) if compressed else content
        write_output(folder / f"{name}.json{_PACKED * compressed}", packed)
    whole = msgspec.json.encode(msgspec.structs.replace(manifest, digests=digests), order="sorted")
    write_output(folder / manifest_name, msgspec.json.format(whole, indent=1))


def load_manifest(
    folder: Path,
    manifest_name: str,
    kind: type[T],
    *,
    schema_version: int,
    features: tuple[int, tuple[str, ...]],
    older: tuple[int, ...] = (),
    made_by: str = TRAINING,
) -> T:
    """Read a manifest.

    Args:
        folder: of the model.
        manifest_name: name of the manifest's file.
        kind: what it is read as.
        schema_version: its version.
        features: version and names of the features that are made here.
        older: versions that are read too, since all that they lack has a default.
        made_by: the command that makes such a model.

    Raises:
        CostModelFileError: it is missing, unreadable, of another version, or of other features.
    """
    path = folder / manifest_name
    try:
        content = _read(path, MAX_MANIFEST_BYTES)
        # The version first: what else a manifest of another one holds, nobody knows here.
        found = msgspec.json.decode(content, type=_Versioned).schema_version
        if found not in (schema_version, *older):
            raise CostModelFileError(
                f"{path} has schema_version {found}, this installation reads {schema_version}; "
                "train the model again"
            )
        manifest = msgspec.json.decode(content, type=kind)
    except OSError as error:
        raise CostModelFileError(
            f"{folder} holds no cost model ({error.strerror or error}); make one with `{made_by}`"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CostModelFileError(
            f"{path} is not a cost model's manifest: {_first_line(error)}; make one with `{made_by}`"
        ) from error
    if (manifest.features_version, manifest.feature_names) != features:
        raise CostModelFileError(
            f"the model in {folder} has features of version {manifest.features_version}, "
            f"{len(manifest.feature_names)} of them, this installation makes version {features[0]}, "
            f"{len(features[1])}; train it again with `{made_by}`"
        )
    return manifest


def load_booster(
    folder: Path, name: str, *, num_features: int, digests: Mapping[str, str], made_by: str = TRAINING
) -> Any:
    """Read a forest, an `xgboost.Booster`; XGBoost sees nothing of the file that was not checked.

    Args:
        folder: of the model.
        name: of the forest.
        num_features: features that its trees may ask for.
        digests: what the manifest says of each forest.
        made_by: the command that makes such a model.

    Raises:
        CostModelFileError: it is missing, unreadable, not the manifest's, or does not fit the number of
            features.
    """
    path = folder / f"{name}.json"
    packed = folder / f"{name}.json{_PACKED}"
    if not path.exists() and packed.exists():
        path = packed
    booster = xgboost.Booster({"nthread": 1})
    try:
        content = _read(path, MAX_FOREST_BYTES)
        if digests.get(name) != _digest(content):
            raise CostModelFileError(
                f"{path} is not the forest that its manifest names, so it was changed, or is of another "
                f"model; train both again with `{made_by}`"
            )
        document = checked_forest(
            content, num_features=num_features, xgboost_version=str(xgboost.__version__)
        )
        booster.load_model(bytearray(document))
    except (OSError, ValueError, RecursionError, xgboost.core.XGBoostError) as error:
        raise CostModelFileError(
            f"{path} cannot be read as a model ({_first_line(error)}); train it again with `{made_by}`"
        ) from error
    return booster


def provenance_of(record_ids: Iterable[int]) -> dict[str, Any]:
    """Return the fields of a manifest that say which records a model rests on, and what trained it."""
    known = list(record_ids)
    return {
        "records_digest": digest_of(known),
        "last_record_id": max(known),
        "versions": (("numpy", np.__version__), ("xgboost", xgboost.__version__)),
    }


def digest_of(record_ids: Iterable[int]) -> str:
    """Name a list of records by 32 hexadecimal digits."""
    return hashlib.blake2b(",".join(map(str, record_ids)).encode(), digest_size=16).hexdigest()


class _Versioned(msgspec.Struct):
    schema_version: int


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _read(path: Path, limit: int) -> bytes:
    """Return a file's content; what is no file, or larger than any model, is refused unread."""
    if path.exists() and not path.is_file():
        raise ValueError("it is no regular file")
    try:
        with gzip.open(path) if path.suffix == _PACKED else path.open("rb") as file:
            content = file.read(limit + 1)
    except (EOFError, zlib.error) as error:
        raise ValueError(f"it is no whole gzip file: {error}") from error
    if len(content) > limit:
        raise ValueError(f"it has more than {limit // 2**20} MiB, which no model needs")
    return content


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__

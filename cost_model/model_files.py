"""A model on disk: forests in XGBoost's own JSON, and a manifest beside them that says what they rest on.

The manifest is written last and removed first, so a folder with a manifest is a whole model. Nothing but JSON
is read. Checked through tests/cost_model/test_kernel_model.py and test_stage_model.py.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import xgboost

from cost_model.errors import CostModelError

T = TypeVar("T", bound=msgspec.Struct)


def save_model(
    folder: Path, manifest_name: str, manifest: msgspec.Struct, boosters: Mapping[str, Any]
) -> None:
    """Write forests as `NAME.json`, and the manifest after them; files appear whole."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / manifest_name).unlink(missing_ok=True)
    for name, booster in boosters.items():
        _write_whole(folder / f"{name}.json", bytes(booster.save_raw("json")))
    _write_whole(
        folder / manifest_name, msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=1)
    )


def load_manifest(folder: Path, manifest_name: str, kind: type[T], *, schema_version: int) -> T:
    """Read a manifest.

    Raises:
        CostModelError: it is missing, unreadable, or of another version.
    """
    path = folder / manifest_name
    try:
        # The version first: what else a manifest of another one holds, nobody knows here.
        found = msgspec.json.decode(path.read_bytes(), type=_Versioned).schema_version
        if found != schema_version:
            raise CostModelError(
                f"{path} has schema_version {found}, this installation reads {schema_version}; "
                "train the model again"
            )
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise CostModelError(
            f"{folder} holds no cost model ({error.strerror or error}); make one with "
            "`tessel cost-model train`"
        ) from error
    except msgspec.MsgspecError as error:
        raise CostModelError(
            f"{path} is not a cost model's manifest: {error}; make one with `tessel cost-model train`"
        ) from error


def check_features(
    folder: Path, found: tuple[int, tuple[str, ...]], wanted: tuple[int, tuple[str, ...]]
) -> None:
    """Refuse a model of other features than this installation makes.

    Args:
        folder: of the model.
        found: version and names of its features.
        wanted: version and names of those that are made here.

    Raises:
        CostModelError: they differ.
    """
    if found != wanted:
        raise CostModelError(
            f"the model in {folder} has features of version {found[0]}, this installation makes version "
            f"{wanted[0]}; train it again with `tessel cost-model train`"
        )


def load_booster(folder: Path, name: str, *, num_features: int) -> Any:  # xgboost.Booster
    """Read a forest.

    Raises:
        CostModelError: it is missing, unreadable, or does not fit the number of features.
    """
    path = folder / f"{name}.json"
    booster = xgboost.Booster()
    try:
        booster.load_model(bytearray(path.read_bytes()))
        found = booster.num_features()
    except (OSError, ValueError, xgboost.core.XGBoostError) as error:
        raise CostModelError(
            f"{path} cannot be read as a model ({_first_line(error)}); train it again with "
            "`tessel cost-model train`"
        ) from error
    if found != num_features:
        raise CostModelError(
            f"{path} has {found} features and its manifest {num_features}, so they are of different models; "
            "train both again with `tessel cost-model train`"
        )
    return booster


def digest_of(record_ids: Iterable[int]) -> str:
    """Name a list of records by 32 hexadecimal digits."""
    return hashlib.blake2b(",".join(map(str, record_ids)).encode(), digest_size=16).hexdigest()


class _Versioned(msgspec.Struct):
    schema_version: int


def _write_whole(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__

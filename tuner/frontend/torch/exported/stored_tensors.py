"""Read weights and constants as raw bytes; old files' pickles by a reader that builds tensors alone.

Checked in tests/tuner/frontend/torch/exported/test_exported_program.py.
"""

from __future__ import annotations

import functools
import io

import torch
from torch._export.serde import schema
from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE

from tuner.frontend.torch.exported.model_archive import ModelArchive
from tuner.frontend.torch.exported.text_rules import decode_json, path_rule, text_rule
from tuner.frontend.torch.exported.typed_schema import typed

Tensors = dict[str, torch.Tensor]

_ROOM_BYTES = 64 * 2**20
"""Bytes by which tensors may be larger, together, than what the file holds of them: expanded views and
weights without values cost a file nothing."""


def read_tensors(archive: ModelArchive, folder: str, config_name: str) -> Tensors:
    """Return tensors by name. Names that share an entry share its memory, so that tied weights stay tied."""
    legacy = f"{folder}model.pt"
    if legacy in archive:
        return unpickled_tensors(archive, legacy)
    config: schema.PayloadConfig = typed(
        schema.PayloadConfig, decode_json(archive.read(folder + config_name)), text_rule
    )
    storages: Tensors = {}
    tensors: Tensors = {}
    room = _ROOM_BYTES
    for name, payload in config.config.items():
        path_rule(name)
        if payload.use_pickle or payload.tensor_meta is None:
            # Of what torch pickles, no TVM program could be made: sub-classes of tensors, and objects.
            raise ValueError(f"tensor {name!r} is pickled, and a pickle may run code; save plain tensors")
        entry = folder + payload.path_name
        dtype = _SERIALIZE_TO_TORCH_DTYPE[payload.tensor_meta.dtype]
        extents = tuple(_whole(extent) for extent in payload.tensor_meta.sizes)
        num_bytes = _num_bytes(extents, dtype)
        if entry not in storages:
            storages[entry] = _storage(archive.read(entry), dtype)
        storage = storages[entry]
        if storage.dtype != dtype:
            storage = storage.view(torch.uint8).view(dtype)
        held = storage.numel() * dtype.itemsize
        room -= max(num_bytes - held, 0)
        if room < 0:
            raise ValueError(f"tensor {name!r} has {num_bytes} bytes, and the file holds {held} of it")
        tensors[name] = _parameter(_strided(storage, extents, payload.tensor_meta), payload)
    return tensors


def _storage(content: bytes, dtype: torch.dtype) -> torch.Tensor:
    if len(content) % dtype.itemsize:
        raise ValueError(f"{len(content)} bytes are no whole number of {dtype}")
    return torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)


def _strided(storage: torch.Tensor, extents: tuple[int, ...], meta: schema.TensorMeta) -> torch.Tensor:
    """Return a view; torch refuses one that reaches beyond its storage."""
    if not storage.numel():
        return torch.zeros(extents, dtype=storage.dtype)  # as a program has that was exported without values
    strides = tuple(_whole(stride) for stride in meta.strides)
    if any(number < 0 for number in strides):
        raise ValueError(f"strides {strides} are below 0")
    return torch.as_strided(storage, extents, strides, _whole(meta.storage_offset))


def _parameter(tensor: torch.Tensor, payload: schema.PayloadMeta) -> torch.Tensor:
    if not payload.is_param or payload.tensor_meta is None:
        return tensor
    return torch.nn.Parameter(tensor, requires_grad=payload.tensor_meta.requires_grad)


def _whole(extent: schema.SymInt) -> int:
    if extent.type != "as_int" or not 0 <= extent.as_int < 2**48:
        raise ValueError("a stored tensor has an extent that is no number")
    return extent.as_int


def _num_bytes(extents: tuple[int, ...], dtype: torch.dtype) -> int:
    return functools.reduce(int.__mul__, extents, dtype.itemsize)


def unpickled_tensors(archive: ModelArchive, name: str) -> Tensors:
    """Return tensors that an old file holds as a pickle, by the reader that builds nothing but tensors."""
    content = archive.read(name)
    if not content:
        return {}
    ModelArchive(content)  # torch.save writes an archive too, whose directory could lie
    tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if not isinstance(tensors, dict):
        raise ValueError(f"entry {name!r} holds a {type(tensors).__name__}, and tensors by name are wanted")
    room = len(content) + _ROOM_BYTES
    for key, tensor in tensors.items():
        if not isinstance(key, str) or not isinstance(tensor, torch.Tensor):
            raise ValueError(f"entry {name!r} holds {key!r}, which is no named tensor")
        path_rule(key)
        room -= tensor.nbytes
    if room < 0:
        raise ValueError(f"entry {name!r} holds tensors that are larger than itself")
    return tensors

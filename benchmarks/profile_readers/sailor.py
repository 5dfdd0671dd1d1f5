"""Profiles of Sailor: `profiles/MODEL/GPU/profile.json`, with weights and activations of `llm_info.json`.

    {micro-batch size: {tensor-parallel degree: {layer: [forward, backward, update]}}}      seconds

`simulations/profiles_tmp.json` holds many of these, as {model: {GPU: …}}; an entry `MODEL/GPU` chooses one.
The times hold for one micro-batch on each device of a tensor-parallel group, its collectives included.
Weights and activations stand apart, in an `llm_info.json` of one of the folders above, of one sample, in
32-bit floats; without that file they are unknown, and a note says so. The update is the optimizer's step of
the profiled model as a whole, the same figure for every layer: it is shared out by weights.
Checked in tests/benchmarks/profile_readers/test_readers.py.

Source: Sailor (SOSP 2025), github.com/eth-easl/sailor, docs/PROFILING.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.profile_readers.reading import Reading
from tessel.documents import read_document
from tessel.errors import ScheduleError, shown
from tessel.names import name_of_path
from tessel.profiles.figures import decode_json, make_cost, read_count, read_number, refusal
from tessel.profiles.profile import CostTable, Layer, Profile

MEMORY_FILE = "llm_info.json"

FOLDERS_ABOVE = 5
"""Folders above the profile that its memory file is looked for in; in Sailor's own tree it is the fourth."""

_TimesOf = dict[str, dict[str, dict[str, list[float]]]]
_Times = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]


def read(path: Path, text: bytes, *, entry: str | None = None) -> Reading:
    """Read a profile and, where it is found, what its layers hold.

    Args:
        path: the file.
        text: what it holds.
        entry: `MODEL/GPU`, where the file holds several profiles.

    Raises:
        DocumentError: it is none; the message names the layer and what to do.
    """
    model, device = name_of_path(path.stem), ""
    if path.name == "profile.json":
        folder = path.absolute().parent
        model, device = name_of_path(folder.parent.name), name_of_path(folder.name)
    if _holds_several(text, path):
        profiles = decode_json(text, dict[str, dict[str, _TimesOf]], path)
        model, device = _chosen(profiles, entry, path)
        times = profiles[model][device]
    elif entry is not None:
        raise refusal(path, "", "it holds one profile", f"leave the entry {entry} out")
    else:
        times = decode_json(text, _TimesOf, path)
    return Reading(_profile(times, path, model=model, device=device))


def _holds_several(text: bytes, path: Path) -> bool:
    """Return whether the outer keys are models, not micro-batch sizes."""
    keys = decode_json(text, dict[str, msgspec.Raw], path)
    return bool(keys) and not all(key.isdecimal() for key in keys)


def _chosen(profiles: Mapping[str, Mapping[str, object]], entry: str | None, path: Path) -> tuple[str, str]:
    """Return model and device of the entry.

    Raises:
        DocumentError: there is none of that name, or none is named.
    """
    known = [f"{model}/{device}" for model, devices in profiles.items() for device in devices]
    if entry not in known:
        found = "it holds several profiles" if entry is None else f"it has no entry {entry!r}"
        raise refusal(path, "", found, f"name one with --entry: {shown(', '.join(known))}")
    model, _, device = entry.rpartition("/")
    return model, device


def _profile(times: _Times, path: Path, *, model: str, device: str) -> Profile:
    sizes, where = _find_sizes(path, model)
    tables = []
    names: list[str] = []
    for micro_batch, degrees in times.items():
        size = read_count(micro_batch, path, f"micro-batch size {micro_batch!r}")
        for degree, layers in degrees.items():
            place = f"micro-batch size {micro_batch}, tensor-parallel degree {degree}"
            count = read_count(degree, path, place)
            order = _in_order(layers, path, place)
            names = names or order
            if order != names:
                raise refusal(
                    path, place, f"it has {len(order)} layers and others {len(names)}", "profile all alike"
                )
            figures = [_figures(layers[name], path, f"{place}, layer {name}") for name in order]
            if (of_degree := sizes.get(degree)) is not None:
                figures = _with_sizes(figures, order, of_degree, size, where, place)
            costs = tuple(
                make_cost(each, path, f"{place}, layer {name}")
                for name, each in zip(order, _with_shared_updates(figures), strict=True)
            )
            tables.append(CostTable(micro_batch=size, tensor_parallel=count, costs=costs))
    notes = ["the optimizer's time is one figure for the profiled model; it is shared out by weights"]
    if not sizes:
        notes.append(
            f"no {MEMORY_FILE} with {model} lies in a folder above, so that weights, activations and "
            "boundaries are unknown and count as 0"
        )
    try:
        return Profile(
            name=model,
            device=device,
            layers=tuple(Layer(f"layer{name}") for name in names),
            tables=tuple(sorted(tables, key=lambda table: (table.micro_batch, table.tensor_parallel))),
            notes=tuple(notes),
        )
    except ScheduleError as error:
        raise refusal(path, "", error, "profile it again") from error


def _in_order(layers: Mapping[str, object], path: Path, place: str) -> list[str]:
    """Return the names of the layers, which are their numbers, in ascending order."""
    wrong = next(
        (name for name in layers if not (name.isascii() and name.isdecimal() and len(name) < 7)), None
    )
    if wrong is not None:
        raise refusal(path, place, f"the layer {wrong!r} is no number", "number the layers from 0")
    order = sorted(layers, key=int)
    if [int(name) for name in order] != list(range(len(order))):
        raise refusal(path, place, "a layer is missing, or stands twice", "number the layers from 0")
    return order


def _figures(values: Sequence[float], path: Path, place: str) -> dict[str, float]:
    """Return the times of one layer in microseconds."""
    if not 2 <= len(values) <= 3:
        raise refusal(
            path, place, f"it has {len(values)} figures", "give [forward, backward, update] in seconds"
        )
    names = ("forward_us", "backward_us", "update_us")
    return {name: read_number(value, path, place) * 1e6 for name, value in zip(names, values, strict=False)}


def _with_shared_updates(figures: Sequence[Mapping[str, float]]) -> list[dict[str, float | None]]:
    """Return the figures with the optimizer's time shared out by weights, where it is one for all layers."""
    updates = {each.get("update_us") for each in figures}
    if len(figures) < 2 or len(updates) > 1 or None in updates:
        return [dict(each) for each in figures]
    weights = [each.get("weight_bytes", 0.0) for each in figures]
    total = sum(weights)
    shares = [weight / total for weight in weights] if total else [1 / len(figures)] * len(figures)
    return [
        {**each, "update_us": each["update_us"] * share} for each, share in zip(figures, shares, strict=True)
    ]


def _with_sizes(
    figures: Sequence[dict[str, float]],
    order: Sequence[str],
    sizes: Mapping[str, Mapping[str, float]],
    micro_batch: int,
    path: Path,
    place: str,
) -> list[dict[str, float]]:
    """Return the figures with weights, activations and boundaries of so many samples.

    Raises:
        DocumentError: the memory file has other layers.
    """
    if sorted(sizes) != sorted(order):
        raise refusal(
            path,
            place,
            f"it has {len(sizes)} layers and the profile {len(order)}",
            "take the two files of one model",
        )
    found = []
    for name, times in zip(order, figures, strict=True):
        here = f"{place}, layer {name}"
        size = {key: _size(sizes[name], key, path, here) for key in _SIZES}
        found.append(
            {
                **times,
                "weight_bytes": size["params_bytes"],
                "saved_bytes": size["act_mem_bytes"] * micro_batch,
                "boundary_bytes": size["act_output_bytes"] * micro_batch,
            }
        )
    return found


_SIZES = ("params_bytes", "act_mem_bytes", "act_output_bytes")


def _size(sizes: Mapping[str, float], key: str, path: Path, place: str) -> float:
    if key not in sizes:
        raise refusal(path, place, f"{key} is missing", "profile the memory again")
    return read_number(sizes[key], path, f"{place}, {key}")


def _find_sizes(path: Path, model: str) -> tuple[dict[str, dict[str, dict[str, float]]], Path]:
    """Return what the memory file above says of the model, by degree and layer, and where it stands."""
    for folder in path.absolute().parents[: FOLDERS_ABOVE + 1]:
        found = folder / MEMORY_FILE
        if found.is_file():
            document = decode_json(
                read_document(found), dict[str, dict[str, dict[str, dict[str, float]]]], found
            )
            return document.get(model, {}), found
    return {}, path

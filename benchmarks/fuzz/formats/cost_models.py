"""Trained cost models and language models."""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fuzz import mutation
from benchmarks.fuzz.campaign import Files, Format
from benchmarks.fuzz.formats.changes import MODEL_COUNT, change_by_suffix
from benchmarks.fuzz.formats.records import RECORDS


def kernel_model_format() -> Format:
    from cost_model.dataset import load_dataset
    from cost_model.errors import CostModelError
    from cost_model.kernel_model import load_kernel_model
    from cost_model.kernel_training import train_kernel_model
    from records import Record
    from records.files.exchange import read_records

    records = [
        Record(record_id=number, workload=workload, measurement=measurement)
        for number, (workload, measurement) in enumerate(read_records(RECORDS))
    ]
    dataset = load_dataset(records)

    def read(folder: Path) -> None:
        load_kernel_model(folder).predict(dataset.queries[:4])

    return _cost_model("kernel-model", train_kernel_model(dataset, num_threads=1), read, (CostModelError,))


def stage_model_format() -> Format:
    from cost_model.errors import CostModelError
    from cost_model.stage_model import load_stage_model, load_stages, train_stage_model
    from tests.samples.kernel_physics import stage_records

    samples = load_stages(stage_records(40))

    def read(folder: Path) -> None:
        load_stage_model(folder).predict([sample.query for sample in samples[:4]])

    return _cost_model("stage-model", train_stage_model(samples), read, (CostModelError,))


def _cost_model(
    name: str, model: Any, read: Callable[[Path], None], own_errors: tuple[type[Exception], ...]
) -> Format:
    with tempfile.TemporaryDirectory() as root:
        model.save(Path(root))
        files = {path.name: path.read_bytes() for path in Path(root).iterdir()}

    def change(rng: random.Random, found: Files) -> Files:
        """Change a file and, half the time, what the manifest says of the forests."""
        changed = change_by_suffix(json=mutation.changed_text_file)(rng, found)
        is_told = rng.random() < 0.5
        for manifest in [file for file in changed if "manifest" in file and changed[file] == found[file]]:
            document = json.loads(changed[manifest])
            if is_told and "digests" in document:
                document["digests"] = {
                    forest: hashlib.blake2b(changed[f"{forest}.json"], digest_size=16).hexdigest()
                    for forest in document["digests"]
                    if f"{forest}.json" in changed
                }
                changed = {**changed, manifest: json.dumps(document).encode()}
        return changed

    return Format(
        name=name,
        count=MODEL_COUNT,
        samples=lambda: [files],
        change=change,
        read=read,
        own_errors=own_errors,
    )


def language_model_format() -> Format:
    from cost_model.errors import CostModelError
    from cost_model.language.model_files import Manifest, load_network, save_network
    from cost_model.language.network import Network, NetworkShape, initial_weights

    shape = NetworkShape(layers=1, width=16, heads=2)
    manifest = Manifest(shape=shape, target="cpu", device_model="any", num_threads=1, seed=0)
    with tempfile.TemporaryDirectory() as root:
        save_network(Network(shape, initial_weights(shape, 4)), manifest, Path(root))
        files = {path.name: path.read_bytes() for path in Path(root).iterdir()}

    def change(rng: random.Random, found: Files) -> Files:
        """Change the weights and, half the time, the digest and the name that the manifest has of them."""
        changed = change_by_suffix(json=mutation.changed_text_file)(rng, found)
        weights = {name: held for name, held in changed.items() if name.endswith(".f32")}
        if weights == {name: found[name] for name in weights} or rng.random() < 0.5:
            return changed
        ((name, held),) = weights.items()
        document = json.loads(found["language_model.json"])
        digest = hashlib.blake2b(held, digest_size=16).hexdigest()
        return {
            "language_model.json": json.dumps(document | {"digest": digest, "weights": name}).encode(),
            name: held,
        }

    return Format(
        name="language-model",
        count=MODEL_COUNT,
        samples=lambda: [files],
        change=change,
        read=lambda folder: ignore(load_network(folder, "cpu", 1)),
        own_errors=(CostModelError,),
    )


def ignore(_: object) -> None:
    return None

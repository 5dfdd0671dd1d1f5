"""Model folders with something changed in them, opened one after the other; a process of its own runs this.

Its exit status is what counts: a signal, or an error that is not the cost model's own, ends it with another.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from kernel_physics import many_records

from cost_model.dataset import load_dataset
from cost_model.errors import CostModelError
from cost_model.forests.boosting import train_forest
from cost_model.kernel_model import KernelModel, load_kernel_model
from cost_model.kernel_training import train_kernel_model

ODD_NUMBERS: tuple[Any, ...] = (
    -1, 0, 1, 2, 7, 144, 145, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63, 10**30, 0.5, -0.0, 1e38, 3.5e38,
    1e308, "1", "", None, True, [], {}, [0], "[1e999]", "nan", "-1", "4294967297", "\ud800",
)  # fmt: skip
LIMIT_S = 5.0


def small_model(num_trees: int = 12) -> tuple[KernelModel, list[Any]]:
    """Return a model of a few small trees, and queries for it."""
    dataset = load_dataset(many_records(30))
    whole = train_kernel_model(dataset, calibrated=False, num_threads=1)
    rng = np.random.default_rng(0)
    forests = []
    for forest in (whole.mean, whole.scale):
        features = rng.normal(size=(200, forest.num_features())).astype(np.float32)
        labels = features[:, 0] + features[:, 3]
        parameters = {"objective": "reg:squarederror", "max_depth": 4}
        forests.append(train_forest(parameters, num_trees, features, labels, seed=0, num_threads=1))
    return KernelModel(*forests, whole.manifest), list(dataset.queries[:8])


def changed_document(document: Any, rng: random.Random) -> bytes:
    """Return the document's text with one to three changes."""
    document = json.loads(json.dumps(document))
    for _ in range(rng.randint(1, 3)):
        _change_something(document, rng)
    text = json.dumps(document).encode()
    if rng.random() < 0.15:
        text = _changed_bytes(text, rng)
    return text


def _change_something(document: Any, rng: random.Random) -> None:
    holder, key = document, None
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            return
        key = rng.choice(keys)
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.08:
            break
        holder = inner
    action = rng.randrange(6)
    if action == 0 and isinstance(holder, dict):
        del holder[key]
    elif action == 1 and isinstance(holder, list):
        del holder[key:]
    elif action == 2 and isinstance(holder, list):
        holder.append(rng.choice(holder))
    elif action == 3 and isinstance(holder, list) and len(holder) > 1:
        other = rng.randrange(len(holder))
        holder[key], holder[other] = holder[other], holder[key]
    elif action == 4 and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
        holder[key] += rng.choice((-1, 1, 10, 10**6))
    else:
        holder[key] = rng.choice(ODD_NUMBERS)


def _changed_bytes(text: bytes, rng: random.Random) -> bytes:
    position = rng.randrange(len(text))
    return rng.choice(
        (
            text[:position],
            text[:position] + bytes([rng.randrange(256)]) + text[position + 1 :],
            b"[" * 200_000,
            b'{"learner":' * 50_000,
            text + text,
            b"",
            text.replace(b"0", b"9", 40),
        )
    )


def run(first: int, count: int) -> dict[str, int]:
    """Open so many changed folders, the first of which has this seed; return how each ended."""
    model, queries = small_model()
    ended = {"refused": 0, "read": 0, "lines": 0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save(folder)
        whole = {path.name: path.read_bytes() for path in folder.iterdir()}
        for seed in range(first, first + count):
            rng = random.Random(seed)
            for path, content in whole.items():
                (folder / path).write_bytes(content)
            target = rng.choice(("mean.json", "mean.json", "scale.json", "manifest.json"))
            text = changed_document(json.loads(whole[target]), rng)
            (folder / target).write_bytes(text)
            if target != "manifest.json":
                manifest = json.loads(whole["manifest.json"])
                manifest["digests"][target.removesuffix(".json")] = hashlib.blake2b(
                    text, digest_size=16
                ).hexdigest()
                (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))
            print(seed, end="\r", file=sys.stderr)
            start = time.process_time()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    predictions = load_kernel_model(folder).predict(queries)
                    assert np.isfinite([each.latency_us for each in predictions]).all(), seed
                ended["read"] += 1
            except CostModelError as error:
                ended["lines"] += str(error).count("\n")
                ended["refused"] += 1
            assert time.process_time() - start < LIMIT_S, seed
    assert ended.pop("lines") == 0, "a message of several lines"
    return ended


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))

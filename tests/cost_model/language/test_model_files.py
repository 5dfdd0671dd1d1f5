"""A saved network is read as it was, and one that does not fit is refused in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cost_model.errors import CostModelFileError
from cost_model.language.model_files import (
    MANIFEST,
    Manifest,
    load_language_manifest,
    load_network,
    save_network,
)
from cost_model.language.network import Network, NetworkShape, initial_weights

TINY = NetworkShape(layers=1, width=16, heads=2)


def network(seed: int) -> Network:
    return Network(TINY, initial_weights(TINY, seed))


def manifest(seed: int) -> Manifest:
    return Manifest(shape=TINY, target="cpu", device_model="any", num_threads=1, seed=seed)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_network(network(4), manifest(4), tmp_path)
    return tmp_path


def test_a_network_is_read_as_it_was_saved_and_a_later_one_takes_its_place(folder: Path) -> None:
    for seed in (4, 5):
        save_network(network(seed), manifest(seed), folder)
        found, known = load_network(folder, "cpu", 1)
        assert (known.seed, known) == (seed, load_language_manifest(folder))
        assert all(np.array_equal(found.weights[name], network(seed).weights[name]) for name in TINY.tensors)
        assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"schema_version": 2', b'"schema_version": 9', "has schema_version 9, this installation reads 2"),
        (b'"text_version": 3', b'"text_version": 4', "has text_version 4"),
        (b'"num_best"', b'"num_words"', "is not a language model's manifest"),
        (b'"num_threads": 1', b'"num_threads": 2', "was trained for .* with 2 threads"),
        (b'"weights": "w', b'"weights": "\\u0000w', "not as its digest does"),
        (b'"width": 16', b'"width": 32', "finite numbers of 4"),
        (b'"heads": 2', b'"heads": 3', "are no network"),
        (b'"layers": 1', b'"layers": 9999', "more than"),
        (b"}", b"", "is not a language model's manifest"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(folder: Path, old: bytes, new: bytes, said: str) -> None:
    path = folder / MANIFEST
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    with pytest.raises(CostModelFileError, match=said):
        load_network(folder, "cpu", 1)


def test_weights_that_do_not_fit_are_refused(folder: Path) -> None:
    weights = folder / load_language_manifest(folder).weights
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(CostModelFileError, match="is not the file that its manifest names"):
        load_network(folder, "cpu", 1)
    broken = dict(network(4).weights, role=np.full_like(network(4).weights["role"], np.nan))
    save_network(Network(TINY, broken), manifest(4), folder)
    with pytest.raises(CostModelFileError, match="finite"):
        load_network(folder, "cpu", 1)
    (folder / load_language_manifest(folder).weights).unlink()
    with pytest.raises(CostModelFileError, match="cannot be read"):
        load_network(folder, "cpu", 1)
    with pytest.raises(CostModelFileError, match="holds no language model"):
        load_network(folder / "nowhere", "cpu", 1)


SAVING = """
import sys
from pathlib import Path
import msgspec
from cost_model.language.model_files import load_language_manifest, save_network
from cost_model.language.network import Network, initial_weights
folder = Path(sys.argv[1])
found = load_language_manifest(folder)
for seed in range(10_000):
    network = Network(found.shape, initial_weights(found.shape, seed))
    save_network(network, msgspec.structs.replace(found, seed=seed), folder)
    print(seed, flush=True)
"""


def test_a_kill_leaves_the_last_whole_network(folder: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SAVING, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    found, known = load_network(folder, "cpu", 1)
    assert np.array_equal(found.weights["role"], network(known.seed).weights["role"])

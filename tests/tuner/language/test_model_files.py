"""A saved network writes as it did before, and one that does not fit is refused in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch", reason="needs the extra `language`")
pytest.importorskip("transformers", reason="needs the extra `language`")

import torch
from kernel_spaces import cpu
from safetensors.torch import save_file

from tuner.errors import ModelFileError
from tuner.language.model_files import MANIFEST, Manifest, load_manifest, load_network, save_network
from tuner.language.network import Network, NetworkShape

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

TINY = NetworkShape(layers=1, width=16, heads=2)


def manifest(**changes: object) -> Manifest:
    known = {
        "shape": TINY,
        "target": cpu().text,
        "device_model": "any",
        "num_threads": 1,
        "seed": 0,
        "families": ("dense",),
        "num_texts": 3,
    }
    return msgspec.convert(known | changes, Manifest)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_network(Network(TINY, seed=4), manifest(), tmp_path)
    return tmp_path


def test_a_network_is_read_as_it_was_saved(folder: Path) -> None:
    network, found = load_network(folder, cpu())
    expected = Network(TINY, seed=4)
    assert torch.equal(network.model.lm_head.weight, network.model.transformer.wte.weight)
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(network.model.state_dict()[name], tensor)
    assert found == load_manifest(folder)
    assert {name for name, _ in found.versions} == {"apache-tvm", "torch", "transformers"}


def test_a_later_network_takes_the_place_of_the_one_before(folder: Path) -> None:
    save_network(Network(TINY, seed=5), manifest(seed=5), folder)
    assert load_network(folder, cpu())[1].seed == 5
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"schema_version": 1', b'"schema_version": 9', "has schema_version 9, this installation reads 1"),
        (b'"vocabulary_version": 1', b'"vocabulary_version": 2', "has vocabulary_version 2"),
        (b'"num_texts"', b'"num_words"', "is not a language model's manifest"),
        (b'"num_threads": 1', b'"num_threads": 2', "was trained for .* with 2 threads"),
        (b'"weights": "w', b'"weights": "\\u0000w', "not as its digest does"),
        (b'"width": 16', b'"width": 32', "weights of another shape"),
        (b'"heads": 2', b'"heads": 3', "are no network"),
        (b"}", b"", "is not a language model's manifest"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(folder: Path, old: bytes, new: bytes, said: str) -> None:
    path = folder / MANIFEST
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(ModelFileError, match=said):
        load_network(folder, cpu())


def test_weights_that_do_not_fit_are_refused(folder: Path) -> None:
    weights = folder / load_manifest(folder).weights
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelFileError, match="cannot be read as weights"):
        load_network(folder, cpu())
    save_file({"a": torch.zeros(2)}, weights)
    with pytest.raises(ModelFileError, match="is not the file that its manifest names"):
        load_network(folder, cpu())
    weights.unlink()
    with pytest.raises(ModelFileError, match="cannot be read as weights"):
        load_network(folder, cpu())
    with pytest.raises(ModelFileError, match="holds no language model"):
        load_network(folder / "nowhere", cpu())


SAVING = """
import sys
from pathlib import Path
from tuner.language.model_files import save_network, load_manifest
from tuner.language.network import Network
import msgspec
folder = Path(sys.argv[1])
found = load_manifest(folder)
for seed in range(10_000):
    save_network(Network(found.shape, seed=seed), msgspec.structs.replace(found, seed=seed), folder)
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
    network, found = load_network(folder, cpu())
    expected = Network(TINY, seed=found.seed)
    assert torch.equal(network.model.transformer.wte.weight, expected.model.transformer.wte.weight)

"""Sailor's profiles and cluster runs: types of the extract that is kept here, and how it is made of a clone.

    git clone https://github.com/eth-easl/sailor
    python -m benchmarks.reality sailor --clone sailor

The extract has the figures that the runs need: of each model and GPU the first layer, the block and the last
layer, since all blocks of a profile are one (checked when it is made). Seconds and bytes are as published.
Eleven of the clone's files are read; the two measurements of OPT-350's runs are two commits of one file.

What is put right, and why:

- `sailor_planner/profiles/GPT-Neo-2.7/GH-96/profile.json` holds OPT-350's times, so GPT-Neo's are taken from
  `simulations/profiles_tmp.json`, where OPT-350's forwards at small micro-batches are rounded by hand;
- GPT-Neo's profile ends with its last norm: the product with the tied embedding and the loss are no module
  of theirs, so no hook timed them. They are added from the collection's operator profile of the same GPU
  (`gpt-post-process`), scaled from its vocabulary to that of the runs, both as rows on a device.

Source: Strati et al., Sailor (SOSP 2025), github.com/eth-easl/sailor, MIT licence.
"""

from __future__ import annotations

import csv
import json
import math
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

EXTRACT = Path(__file__).parents[1] / "data" / "sailor.json"

FIRST_COMMIT = "37ded10"
"""Has the earlier measurements of OPT-350's runs."""

PLANNER = Path("sailor/Planner")

NEEDED: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "OPT-350": {"GH-96": (4,), "RTX-2080": (8,), "RTX-3090": (2, 8), "Titan-RTX": (2, 8)},
    "GPT-Neo-2.7": {"GH-96": (4,)},
}
"""Tensor-parallel degrees of the runs, by model and GPU."""

MICRO_BATCHES = (1, 2, 4, 8)

VOCABULARY_ROWS = 12_672
"""GPT-2's 50,257 tokens, padded for four devices as the runs' weights show: rows on a device."""

PROFILED_ROWS = 32_064
"""The same of the operator profile: its weights are 313.125 MiB of 2,560 four-byte columns."""


COPIES = {
    "clariden/GPT-NEO/N4_D4": "clariden/OPT-350/N4_D4",
    "mit/OPT-350/N3_D1": "mit/OPT-350/N6_D2",
}
"""Runs whose seconds and bytes are those of another: the first has OPT-350's layers and its earlier
measurement, the second has one replica and spends 5.46 s on reducing gradients over replicas."""


class LayerFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Seconds of one layer at one micro-batch."""

    forward_s: float
    backward_s: float
    update_s: float


class LayerSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Four-byte numbers of one layer on one device; activations a sample."""

    weights: int
    saved: int
    output: int


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model on one GPU at one micro-batch and tensor-parallel degree.

    Attributes:
        first: of the embedding.
        block: of each layer between.
        last: of the head.
        head_s: forward and backward of a head that no layer holds.
        peak_bytes: most that an operator of a block takes beside what is kept; 0 if unknown.
    """

    model: str
    gpu: str
    tensor_parallel: int
    micro_batch: int
    first: LayerFigures
    block: LayerFigures
    last: LayerFigures
    head_s: tuple[float, float] = (0.0, 0.0)
    peak_bytes: int = 0


class Sizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model at one tensor-parallel degree."""

    model: str
    tensor_parallel: int
    first: LayerSizes
    block: LayerSizes
    last: LayerSizes
    num_layers: int


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run on a cluster.

    Attributes:
        name: its file, without what all have in common.
        model: whose profile it has.
        gpus: kind of GPU, by stage and replica.
        stages: layers of each stage.
        tensor_parallel: GPUs of a stage of a replica.
        micro_batch: samples.
        global_batch: samples of a step.
        real_s: measured seconds of a step.
        reduce_s: measured seconds of its gradients' reduction.
        real_bytes: most memory of a GPU, as the driver counts.
        earlier_s: an earlier measurement of the same; None if there is none, or it was over other links.
        simulated_s: by Sailor's own simulator.
        simulated_bytes: the same.
        copy_of: the run whose figures it has; empty for its own.
    """

    name: str
    model: str
    gpus: tuple[tuple[str, ...], ...]
    stages: tuple[int, ...]
    tensor_parallel: int
    micro_batch: int
    global_batch: int
    real_s: float
    reduce_s: float
    real_bytes: int
    earlier_s: float | None = None
    simulated_s: float = math.nan
    simulated_bytes: float = math.nan
    copy_of: str = ""

    @property
    def pipeline(self) -> int:
        return len(self.stages)

    @property
    def data_parallel(self) -> int:
        return len(self.gpus[0])

    @property
    def micro_batches(self) -> int:
        return self.global_batch // (self.micro_batch * self.data_parallel)

    @property
    def nodes(self) -> int:
        """Nodes, with one stage of a replica on each."""
        return self.pipeline * self.data_parallel

    @property
    def simulated_time_error(self) -> float:
        return self.simulated_s / self.real_s - 1

    @property
    def simulated_memory_error(self) -> float:
        return self.simulated_bytes / self.real_bytes - 1

    @property
    def is_clariden(self) -> bool:
        return self.name.startswith("clariden")


class Collection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The extract."""

    source: str
    license: str
    times: tuple[Times, ...]
    sizes: tuple[Sizes, ...]
    runs: tuple[Run, ...]

    def times_of(self, model: str, gpu: str, tensor_parallel: int) -> tuple[Times, ...]:
        """Return the tables of one model, GPU and degree, by ascending micro-batch."""
        wanted = (model, gpu, tensor_parallel)
        return tuple(each for each in self.times if (each.model, each.gpu, each.tensor_parallel) == wanted)

    def sizes_of(self, model: str, tensor_parallel: int) -> Sizes:
        """Return the sizes of one model and degree."""
        return next(
            each for each in self.sizes if (each.model, each.tensor_parallel) == (model, tensor_parallel)
        )


def load_extract() -> Collection:
    """Return the extract that is kept here."""
    return msgspec.json.decode(EXTRACT.read_bytes(), type=Collection)


def save_extract(collection: Collection) -> None:
    """Write the extract, one table or run a line."""
    lines = []
    for name in ("source", "license"):
        lines.append(f'"{name}": {msgspec.json.encode(getattr(collection, name)).decode()}')
    for name in ("sizes", "times", "runs"):
        rows = (msgspec.json.encode(each).decode() for each in getattr(collection, name))
        lines.append(f'"{name}": [\n' + ",\n".join(rows) + "\n]")
    EXTRACT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read_clone(clone: Path, simulated: Mapping[str, tuple[float, float]]) -> Collection:
    """Return the collection of a clone.

    Args:
        clone: working tree of the repository.
        simulated: seconds and bytes by its own simulator, by name of run.
    """
    return Collection(
        source="Strati et al., Sailor (SOSP 2025), github.com/eth-easl/sailor",
        license="MIT, copyright (c) 2023 - present, ETH Zurich",
        times=tuple(_times(clone)),
        sizes=tuple(_sizes(clone)),
        runs=tuple(_runs(clone, simulated)),
    )


def _json(path: Path) -> Any:  # The shapes are upstream's; what is read of them is typed above.
    return json.loads(path.read_text())


def _times(clone: Path) -> Iterator[Times]:
    for model, gpus in NEEDED.items():
        for gpu, degrees in gpus.items():
            tables = _profile(clone, model, gpu)
            for degree in degrees:
                for micro_batch in MICRO_BATCHES:
                    layers = list(tables[str(micro_batch)][str(degree)].values())
                    block = _the_block(layers)
                    operators = _operators(clone, model, gpu, micro_batch, degree)
                    yield Times(
                        model=model,
                        gpu=gpu,
                        tensor_parallel=degree,
                        micro_batch=micro_batch,
                        first=_figures(layers[0]),
                        block=_figures(block),
                        last=_figures(layers[-1]),
                        head_s=_head(operators) if model.startswith("GPT-Neo") else (0.0, 0.0),
                        peak_bytes=_peak(operators),
                    )


def _profile(clone: Path, model: str, gpu: str) -> dict[str, dict[str, dict[str, list[float]]]]:
    if model.startswith("GPT-Neo"):
        found = _json(clone / PLANNER / "simulations/profiles_tmp.json")[model][gpu]
    else:
        found = _json(clone / PLANNER / f"sailor_planner/profiles/{model}/{gpu}/profile.json")
    return found


def _the_block(layers: Sequence[list[float]]) -> list[float]:
    """Return the block that all layers but the first two and the last repeat.

    The second differs a little, by what its first kernel waits for.
    """
    if any(layer != layers[2] for layer in layers[2:-1]):
        raise ValueError("the layers between the first two and the last are not one block; read another way")
    return layers[2]


def _figures(layer: list[float]) -> LayerFigures:
    return LayerFigures(forward_s=layer[0], backward_s=layer[1], update_s=layer[2])


def _operators(
    clone: Path, model: str, gpu: str, micro_batch: int, degree: int
) -> dict[str, dict[str, float]]:
    folder = clone / PLANNER / f"baselines/Aceso/profiler/{gpu}/profiled-data-fp32"
    with (folder / f"{model}_mbs{micro_batch}_tp{degree}_algo0.csv").open(newline="") as lines:
        return {
            row.pop("op_name"): {name: float(value) for name, value in row.items()}
            for row in csv.DictReader(lines)
        }


def _head(operators: Mapping[str, Mapping[str, float]]) -> tuple[float, float]:
    figures = operators["gpt-post-process"]
    scale = 1e-6 * VOCABULARY_ROWS / PROFILED_ROWS
    return figures["forward-compute"] * scale, figures["backward-compute"] * scale


def _peak(operators: Mapping[str, Mapping[str, float]]) -> int:
    mib = max(
        max(figures["fwd_reserved"], figures["bwd_reserved"])
        for name, figures in operators.items()
        if name.startswith("enc-")
    )
    return round(mib * 2**20)


def _sizes(clone: Path) -> Iterator[Sizes]:
    found = _json(clone / PLANNER / "llm_info.json")
    for model, gpus in NEEDED.items():
        for degree in sorted({degree for degrees in gpus.values() for degree in degrees}):
            layers = list(found[model][str(degree)].values())
            yield Sizes(
                model=model,
                tensor_parallel=degree,
                first=_layer_sizes(layers[0]),
                block=_layer_sizes(layers[2]),
                last=_layer_sizes(layers[-1]),
                num_layers=len(layers),
            )


def _layer_sizes(layer: Mapping[str, int]) -> LayerSizes:
    return LayerSizes(
        weights=layer["params_floats"], saved=layer["act_mem_floats"], output=layer["act_output_floats"]
    )


def _runs(clone: Path, simulated: Mapping[str, tuple[float, float]]) -> Iterator[Run]:
    folder = clone / PLANNER / "simulations/validation"
    for path in sorted(folder.rglob("plan_config_*.json")):
        name = run_name(path.relative_to(folder))
        document, earlier = _json(path), _earlier(clone, path)
        pipeline = document["pipeline_list"][0]
        seconds, num_bytes = simulated.get(name, (math.nan, math.nan))
        yield Run(
            name=name,
            model="GPT-Neo-2.7" if "GPT-NEO" in name else "OPT-350",
            gpus=tuple(tuple(each[0][0][0] for each in stage) for stage in pipeline["tmp_per_stage"]),
            stages=tuple(map(len, pipeline["layers_per_stage"])),
            tensor_parallel=pipeline["tmp_per_stage"][0][0][1],
            micro_batch=document["mbs"],
            global_batch=document["gbs"],
            real_s=document["real"],
            reduce_s=document["red_grads"],
            real_bytes=document["max_mem"],
            earlier_s=None if earlier is None or name.startswith("mit") else _if_other(earlier, document),
            simulated_s=seconds,
            simulated_bytes=num_bytes,
            copy_of=COPIES.get(name, ""),
        )


def _if_other(earlier: Mapping[str, float], document: Mapping[str, float]) -> float | None:
    return None if earlier["real"] == document["real"] else earlier["real"]


def run_name(path: Path) -> str:
    """Return the name of a run, given its file below the folder of runs."""
    model = path.parts[1] if path.parts[0] == "clariden" else "OPT-350"
    return f"{path.parts[0]}/{model}/{path.stem.removeprefix('plan_config_')}"


def _earlier(clone: Path, path: Path) -> dict[str, Any] | None:
    place = path.relative_to(clone)
    found = subprocess.run(
        ["git", "-C", str(clone), "show", f"{FIRST_COMMIT}:{place}"], capture_output=True, check=False
    )
    return json.loads(found.stdout) if found.returncode == 0 else None

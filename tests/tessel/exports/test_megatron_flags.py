"""Flags beside a layout, and layouts at random, against what Megatron-Core builds where it is installed."""

from __future__ import annotations

import json
import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from layer_plans import saved_plan

from tessel.errors import ScheduleError
from tessel.exports.megatron import MegatronLayout, read_layout
from tessel.exports.megatron_plan import megatron_arguments, moe_layer_freq, recompute_flags, split_flags
from tessel.exports.recipe import recipe_of_saved_plan

FRAMEWORKS = Path(__file__).parents[3] / "out" / "frameworks" / "bin" / "python"
NUM_LAYOUTS = 20_000


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (["dense0", "dense1", "moe2", "moe3", "moe4"], "([0]*2+[1]*3)"),
        (["h.0.moe", "h.1.mlp", "h.2.moe", "h.3.mlp"], "([1]*1+[0]*1+[1]*1+[0]*1)"),
        (["block0", "block1"], None),
        (["mamba0", "attention1"], None),
        (["dense0", "moe1", "mamba2"], None),
        (["moe_a0", "moe_b1"], None),
    ],
)
def test_layers_with_experts_are_said(blocks: list[str], expected: str | None) -> None:
    assert moe_layer_freq(blocks) == expected


def test_recomputation_is_of_all_layers_or_none() -> None:
    assert recompute_flags(()) == recompute_flags((False, False)) == []
    recipe = recipe_of_saved_plan(saved_plan())
    for recompute, is_told in (((True, True), False), ((True, False), True)):
        text = megatron_arguments(replace(recipe, recompute=recompute))
        assert "\n--recompute-granularity full\n--recompute-method uniform\n" in text
        assert ("recomputes stages 0 alone" in text) == is_told
    assert "--recompute" not in megatron_arguments(replace(recipe, recompute=()))


@pytest.mark.parametrize(
    ("stages", "ranks", "expected"),
    [
        (("Ett", "tt", "ttL"), 3, []),
        (("Et", "tt", "ttL"), 3, ["--account-for-embedding-in-pipeline-split"]),
        (("Ett", "tt", "tL"), 3, ["--account-for-loss-in-pipeline-split"]),
        (
            ("Et", "tt", "tt", "tL"),
            2,
            [
                "--account-for-embedding-in-pipeline-split",
                "--account-for-loss-in-pipeline-split",
                "--num-virtual-stages-per-pipeline-rank 2",
            ],
        ),
        (
            ("Et", "ttt", "ttL"),
            3,
            ["--decoder-first-pipeline-num-layers 1", "--decoder-last-pipeline-num-layers 2"],
        ),
        (("Ettt", "tL"), 2, ["--decoder-first-pipeline-num-layers 3"]),
        (("Et", "ttt", "tt", "tL"), 4, None),
        (("E", "ttt", "ttL"), 3, None),
        (("Et", "tt", "tmL"), 3, None),
        (("E", "tt", "tt", "L"), 4, None),
        (("Ett", "tttt", "tt", "ttL"), 2, None),
        (("EtL",), 1, []),
        (
            ("E", "L"),
            2,
            ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"],
        ),
        (("Et", "tt", "tt", "tttL"), 2, None),
        (("", "Et", "tL"), 3, None),
    ],
)
def test_older_ways_to_cut_a_model_are_said(
    stages: tuple[str, ...], ranks: int, expected: list[str] | None
) -> None:
    assert split_flags(MegatronLayout(stages, ranks)) == expected


PARSE = """
import json, sys, warnings
warnings.simplefilter("ignore")
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout as Layout
letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
found = []
for text, ranks in json.load(open(sys.argv[1])):
    try:
        layout = Layout(text, ranks)
        flat = [layer.name for layer in layout.flatten_layout]
        layout.validate_layer_layout(flat.count("decoder"), flat.count("mtp") or None)
    except Exception:
        found.append(None)
        continue
    chunks = len(layout.layout[0])
    found.append(["".join(letters[each.name] for each in layout.layout[rank][chunk])
                  for chunk in range(chunks) for rank in range(ranks)])
json.dump(found, open(sys.argv[2], "w"))
"""

BUILD = """
import json, sys, warnings
warnings.simplefilter("ignore")
from types import SimpleNamespace
from megatron.core.transformer.transformer_block import get_num_layers_to_build
found = []
for case in json.load(open(sys.argv[1])):
    config = SimpleNamespace(**case)
    found.append([get_num_layers_to_build(config, vp_stage=chunk, pp_rank=rank)
                  for chunk in range(case["virtual_pipeline_model_parallel_size"] or 1)
                  for rank in range(case["pipeline_model_parallel_size"])])
json.dump(found, open(sys.argv[2], "w"))
"""


def asked(program: str, cases: object, folder: Path) -> list[object]:
    """Return what Megatron says of some cases, in a process that has it."""
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [str(FRAMEWORKS), "-c", program, str(folder / "cases.json"), str(folder / "found.json")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: list[object] = json.loads((folder / "found.json").read_text())
    return found


def random_layout(rng: random.Random) -> tuple[str, int]:
    """A layout that is often right, as people write it, sometimes with a letter changed."""
    ranks, chunks = rng.randint(1, 4), rng.randint(1, 3)
    stages = ["t" * rng.randint(0, 3) for _ in range(ranks * chunks)]
    stages[0] = "E" + stages[0]
    stages[-1] += rng.choice(["L", "L", "mL", "mmL"])
    text = "|".join(stages)
    if rng.random() < 0.5:
        count = rng.randint(1, 4)
        text = text.replace("|", f"|({'t' * rng.randint(1, 2)}|)*{count * ranks}", 1)
    if rng.random() < 0.3:
        text = text.replace("tt", "t*2,")
    if rng.random() < 0.4:
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice(["", *"EtmL|*2,("]) + text[place + 1 :]
    return text, ranks


def ours(text: str, ranks: int) -> list[str] | None:
    try:
        return list(read_layout(text, ranks).stages)
    except ScheduleError:
        return None


@pytest.mark.slow
@pytest.mark.skipif(not FRAMEWORKS.exists(), reason="`make frameworks` has installed no frameworks")
def test_random_layouts_are_read_as_megatron_reads_them(tmp_path: Path) -> None:
    rng = random.Random(0)
    cases = [random_layout(rng) for _ in range(NUM_LAYOUTS)]
    found = asked(PARSE, cases, tmp_path)
    expected = [ours(text, ranks) for text, ranks in cases]
    differing = [case for case, one, other in zip(cases, found, expected, strict=True) if one != other]
    assert differing == []
    assert NUM_LAYOUTS / 5 < sum(each is None for each in found) < NUM_LAYOUTS * 4 / 5


@pytest.mark.slow
@pytest.mark.skipif(not FRAMEWORKS.exists(), reason="`make frameworks` has installed no frameworks")
def test_flags_build_the_layers_of_the_layout(tmp_path: Path) -> None:
    rng = random.Random(1)
    layouts, cases = [], []
    for _ in range(3000):
        ranks, chunks = rng.randint(2, 4), rng.randint(1, 2)
        most = rng.randint(1, 3)
        stages = ["t" * rng.choice([most, most, most, max(1, most - 1)]) for _ in range(ranks * chunks)]
        stages[0], stages[-1] = "E" + stages[0], stages[-1] + "L"
        layout = MegatronLayout(tuple(stages), ranks)
        flags = split_flags(layout)
        if flags is None:
            continue
        given = dict([*flag.split(" "), ""][:2] for flag in flags)
        first, last = (given.get(f"--decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
        layouts.append(layout)
        cases.append(
            {
                "num_layers": layout.num_decoder_layers,
                "pipeline_model_parallel_size": ranks,
                "virtual_pipeline_model_parallel_size": chunks if chunks > 1 else None,
                "pipeline_model_parallel_layout": None,
                "num_layers_in_first_pipeline_stage": int(first) if first else None,
                "num_layers_in_last_pipeline_stage": int(last) if last else None,
                "account_for_embedding_in_pipeline_split": "--account-for-embedding-in-pipeline-split"
                in given,
                "account_for_loss_in_pipeline_split": "--account-for-loss-in-pipeline-split" in given,
            }
        )
    assert len(layouts) > 500
    expected = [[stage.count("t") for stage in layout.stages] for layout in layouts]
    assert asked(BUILD, cases, tmp_path) == expected

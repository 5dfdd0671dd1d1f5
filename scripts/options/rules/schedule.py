"""Rules of `schedule`: shapes and placement files, and what is searched; and of `chunk`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scripts.options.rules.rule import PICTURES, CommandLine, Condition, Rule, given, valued, written_as


def _is_file(shape: str) -> bool:
    from tessel.shapes import SHAPES

    return shape not in SHAPES and (bool(Path(shape).suffix) or Path(shape).exists())


def _lacks_tensor_parallel(line: CommandLine) -> bool:
    from tessel.shapes import SHAPES, make_shape

    shape = str(line.values["shape"])
    return shape in SHAPES and all(len(block.devices) == 1 for block in make_shape(shape, 2).blocks)


def _lacks_chunks(line: CommandLine) -> bool:
    from tessel.shapes import SHAPES, SHAPES_OF_CHUNKS

    shape = str(line.values["shape"])
    return shape in SHAPES and shape not in SHAPES_OF_CHUNKS


_FILE = Rule(
    excludes=(Condition("a placement file", lambda line: _is_file(str(line.values["shape"]))),),
    why="it goes with a shape, and the file says it itself",
    remedy="change the file",
)
_INFER = Rule(excludes=given("--infer"), why="no backward and no memory is left", remedy="leave --infer out")
_HALVES = Rule(
    needs=given("--split-backward", "--choose-backward"),
    why="a joint backward has no halves",
    remedy="add one of the two, or give --backward-span",
)
_WITHOUT_TENSOR_PARALLEL = Condition("a shape without tensor-parallel blocks", _lacks_tensor_parallel)
_WITHOUT_CHUNKS = Condition("a shape without chunks", _lacks_chunks)
_PERIOD_FRONTIER = Condition(
    "--frontier without --micro-batches",
    lambda line: "--frontier" in line.given and "--micro-batches" not in line.given,
)
_NOTHING_RANDOM = Rule(
    excludes=(*given("--period-only"), _PERIOD_FRONTIER),
    why="nothing in the search of a period is random",
)

_OF_FRONTIER_PICTURES = (
    Rule(
        needs=given("--frontier"),
        why="only a frontier is saved as a picture",
        remedy="draw the saved schedule with tessel draw",
    ),
    Rule(
        needs=(written_as("--save", *PICTURES),),
        why="only pictures are drawn so",
        remedy="save the frontier as one of these",
    ),
)
_OF_BATCH = Rule(
    needs=given("--batch"), why="equal micro-batches are shared out equally", remedy="add --batch"
)
SCHEDULE: Mapping[str, tuple[Rule, ...]] = {
    "--frontier": (Rule(excludes=given("--batch"), why="a frontier is of equal micro-batches"),),
    "--overlap-factor": (
        Rule(
            excludes=given("--batch", "--frontier", "--period-only", "--infer"),
            why="pairs are of whole schedules of equal micro-batches that are trained",
        ),
    ),
    "--spread": (
        Rule(
            excludes=given("--overlap-factor", "--frontier", "--period-only"),
            why="one whole schedule of blocks by themselves is replayed",
        ),
    ),
    "--replicas": (_OF_BATCH,),
    "--keep-order": (
        Rule(needs=given("--replicas"), why="one replica runs them all", remedy="add --replicas"),
    ),
    "--devices": (_FILE,),
    "--micro-batches": (
        Rule(excludes=given("--batch"), why="the batch says how many there are"),
        Rule(
            excludes=given("--period-only"),
            why="a repetend repeats indefinitely",
            remedy="leave --period-only out",
        ),
    ),
    "--memory": (
        Rule(
            excludes=given("--frontier"),
            why="it is one limit, and a frontier covers all relevant ones",
        ),
    ),
    "--infer": (_FILE,),
    "--split-backward": (
        _FILE,
        _INFER,
        Rule(
            excludes=given("--choose-backward"),
            why="that leaves joint or split to the search",
            remedy="leave --choose-backward out",
        ),
    ),
    "--choose-backward": (_FILE, _INFER),
    "--recompute": (_FILE, _INFER),
    "--forward-span": (_FILE,),
    "--backward-span": (
        _FILE,
        _INFER,
        Rule(
            excludes=given("--split-backward"),
            why="no joint backward is left",
            remedy="give --backward-input-span and --backward-weight-span",
        ),
    ),
    "--backward-input-span": (_FILE, _INFER, _HALVES),
    "--backward-weight-span": (_FILE, _INFER, _HALVES),
    "--forward-memory": (_FILE, _INFER),
    "--recompute-memory": (
        _FILE,
        _INFER,
        Rule(needs=given("--recompute"), why="nothing is recomputed", remedy="add --recompute"),
    ),
    "--tensor-parallel-span": (
        _FILE,
        Rule(
            excludes=(_WITHOUT_TENSOR_PARALLEL,),
            why="there is no block to give the span to",
            remedy="choose a shape such as mshape",
        ),
    ),
    "--chunks": (
        _FILE,
        Rule(
            excludes=(_WITHOUT_CHUNKS,),
            why="every device holds the stages that its shape says",
            remedy="choose interleaved or zbv",
        ),
    ),
    "--lag": (
        _FILE,
        Rule(excludes=(valued("--devices", 1),), why="nothing passes between devices"),
    ),
    "--period-only": (
        Rule(excludes=given("--batch"), why="a repetend is of equal micro-batches"),
        Rule(
            excludes=given("--frontier"),
            why="a frontier without --micro-batches is one of periods already",
            remedy="leave --micro-batches out",
        ),
    ),
    "--seed": (_NOTHING_RANDOM,),
    "--save": (
        Rule(
            excludes=given("--replicas"),
            why="each replica has a schedule of its own",
            remedy="print them with --json",
        ),
        Rule(
            excludes=given("--period-only"),
            why="a repetend is no whole schedule to write",
            remedy="leave --period-only out, or print the repetend with --json",
        ),
    ),
    "--width": _OF_FRONTIER_PICTURES,
    "--style": _OF_FRONTIER_PICTURES,
}
CHUNK: Mapping[str, tuple[Rule, ...]] = {
    "--law": (Rule(excludes=given("--times"), why="the table gives the law", remedy="leave one out"),),
}

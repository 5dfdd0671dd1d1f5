"""`tessel chunk`: in which chunks a serving pipeline takes a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.options.dataclass_options import common_options, takes_options
from scripts.options.search_options import HopUsOption, JsonOption
from scripts.options.tuning_options import job_options
from scripts.terminal import console
from tessel.jobs.chunking import ChunkOptions, chunk_with
from tessel.jobs.inputs.arguments import check_folder
from tessel.progress import messages

if TYPE_CHECKING:
    from scripts.documents.chunks import Chunked
    from tessel.batches.chunk_law import FittedLaw
    from tessel.search.batches.chunks import FoundChunks, RuleChunks


@dataclass(frozen=True, kw_only=True)
class ChunkCommandOptions:
    """A serving pipeline, and what a chunk takes on one of its stages."""

    devices: Annotated[
        int | None, "Stages of the pipeline, such as 4; as many as --stage-factors has if left out."
    ] = None
    law: Annotated[
        str | None,
        "`a,b,c`: n tokens after p take a + b n + c n (p + n/2) us on a stage; needed without --times.",
    ] = None
    times: Annotated[
        Path | None,
        "Measured chunks that give the law: a CSV, `tokens,prefix,time_us`; needed without --law.",
    ] = None
    stage_factors: Annotated[
        str | None, "Time of each stage over the law's, `1,1,1,1.1`; all alike if left out."
    ] = None
    multiple: Annotated[int, "Every chunk but the last is a multiple of so many tokens."] = 64
    max_chunk: Annotated[int | None, "Most tokens of a chunk, such as 8192; no limit if left out."] = None
    max_wait_us: Annotated[
        float | None, "Longest that a chunk may take on a stage, in us, such as 50000; no limit if left out."
    ] = None
    decode_us: Annotated[float, "A decode step that runs on each stage after every chunk, in us."] = 0.0
    hop_us: HopUsOption = 0.0
    save: Annotated[
        Path | None,
        "Write the schedule, in steps of a us, to this file, such as chunks.json; kept nowhere if left out.",
    ] = None
    json: JsonOption = False


@common_options("devices law times stage_factors multiple max_chunk max_wait_us decode_us hop_us save json")
@takes_options
def chunk(
    prompt: Annotated[int, typer.Argument(metavar="PROMPT", help="Tokens of the prompt.")],
    options: ChunkCommandOptions,
) -> None:
    """Find the sizes of a prompt's chunks with which a serving pipeline is through with it first.

    Examples:

    `tessel chunk 131072 --devices 4 --law 3000,60,8e-4`

    `tessel chunk 131072 --times chunks.csv --stage-factors 1,1,1,1.07 --save chunks.json`
    """
    check_folder("--save", options.save)
    found, fitted = chunk_with(prompt, job_options(ChunkOptions, options))
    if options.save is not None:
        from tessel.documents import save
        from tessel.search.batches.chunks import chunk_schedule

        save(chunk_schedule(found), options.save)
        messages.note(f"schedule written to {options.save}")
    if options.json:
        console.print_json(_document(found, fitted))
    else:
        _print(found, fitted)


def _print(found: FoundChunks, fitted: FittedLaw) -> None:
    law = fitted.law
    if fitted.worst_error:
        console.print_line(
            f"law           {law.launch_us:.6g},{law.token_us:.6g},{law.pair_us:.6g}; measured chunks "
            f"are {fitted.mean_error:.1%} off (worst {fitted.worst_error:.1%})"
        )
    proof = "proven optimal" if found.optimal else f"gap {found.gap:.2%}"
    console.print_line(
        f"prefill       {_ms(found.time_us)} predicted in {len(found.chunks)} chunks ({proof})"
    )
    console.print_line(f"lower bound   {_ms(found.lower_bound_us)}")
    console.print_line(f"longest chunk {_ms(found.longest_wait_us)} on the slowest stage")
    console.print_line(f"found by      {found.found_by}")
    console.print_line(f"chunks        {_sizes(found.chunks)}")
    if found.rules:
        rows = [
            [_rule(each), str(len(each.chunks)), _ms(each.time_us), f"{each.time_us / found.time_us - 1:.2%}"]
            for each in found.rules
        ]
        console.print_line()
        console.print_table(
            "", ["rule of a framework, at its best", "chunks", "predicted", "longer by"], rows
        )


def _document(found: FoundChunks, fitted: FittedLaw) -> Chunked:
    from scripts.documents.chunks import Chunked, PrintedRuleChunks

    return Chunked(
        prompt=found.prefill.prompt,
        law=fitted.law,
        mean_error=fitted.mean_error,
        worst_error=fitted.worst_error,
        stage_factors=found.prefill.factors,
        chunks=found.chunks,
        predicted_us=found.time_us,
        lower_bound_us=found.lower_bound_us,
        optimal=found.optimal,
        longest_wait_us=found.longest_wait_us,
        found_by=found.found_by,
        rules=tuple(
            PrintedRuleChunks(
                rule=each.rule,
                initial=each.initial,
                smoothing=each.smoothing,
                num_chunks=len(each.chunks),
                predicted_us=each.time_us,
            )
            for each in found.rules
        ),
    )


def _sizes(chunks: tuple[int, ...]) -> str:
    """Return sizes in their order, repeated ones as 1024x12."""
    runs = [(size, len(list(run))) for size, run in groupby(chunks)]
    return " ".join(str(size) if count == 1 else f"{size}x{count}" for size, count in runs)


def _rule(each: RuleChunks) -> str:
    smoothing = "" if each.smoothing is None else f", smoothing {each.smoothing:g}"
    return f"{each.rule}, from {each.initial} tokens{smoothing}"


def _ms(time_us: float) -> str:
    return f"{time_us / 1000:.2f} ms"

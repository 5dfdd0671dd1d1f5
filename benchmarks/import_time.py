"""Processor time and memory of importing torch modules: decoders of growing depth, T5, SegFormer.

    python -m benchmarks.import_time              about a minute
    python -m benchmarks.import_time --layers 96  a decoder of another depth alone

Each is imported in a process of its own, from the module to the Relax function, with the export.
Configurations are tiny: what counts is the number of operators. Processor time hardly depends on other load.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.architectures.language import LANGUAGE, Built, decoder
from benchmarks.architectures.vision import VISION
from tuner.frontend.torch.program import import_module

_LAYERS = (12, 24, 48)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, nargs="*", help="depths of decoders, and nothing else")
    given = parser.parse_args(arguments)
    cases = {f"decoder, {count} layers": _deep(count) for count in given.layers or _LAYERS}
    if not given.layers:
        cases |= {"T5": LANGUAGE["t5"], "SegFormer": VISION["segformer"]}
    print("| model | operators | processor time | memory |\n|---|--:|--:|--:|")
    for name, build in cases.items():
        process = multiprocessing.get_context("fork").Process(target=_measure, args=(name, build))
        process.start()
        process.join()


def _deep(count: int) -> Callable[[], Built]:
    return decoder("LlamaConfig", num_hidden_layers=count)


def _measure(name: str, build: Callable[[], Built]) -> None:
    torch.manual_seed(0)
    module, inputs = build()
    before_s, before_kib = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = import_module(module.eval(), inputs, name)
    spent_s = time.process_time() - before_s
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    operators = sum(len(block.bindings) for block in model.module["main"].body.blocks)
    print(f"| {name} | {operators} | {spent_s:.1f} s | {grown:.0f} MiB |", flush=True)


if __name__ == "__main__":
    main()

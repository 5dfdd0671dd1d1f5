"""Compile a model, race it against torch, save it, and call what was saved.

    python examples/compile_and_call.py out/language_model.tessel

The file runs in a process that has no tuner: `tessel.load` is all that it needs.
"""

import sys

import own_model
import torch

import tessel


def main(path: str) -> None:
    module, (token_ids,) = own_model.build()
    program = tessel.compile(module, (token_ids,), threads=1, backends=["tvm", "packed_matmul", "attention"])
    print(program.explain())
    print(program.benchmark(against=("torch eager",), rounds=12))
    print(f"{program.save(path)} bytes written to {path}")

    loaded = tessel.load(path)
    with torch.inference_mode():
        expected = module.eval()(token_ids)
    error = (loaded(token_ids) - expected).abs().max() / expected.abs().max()
    print(f"largest error against torch, of the largest output: {error:.1e}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "out/language_model.tessel")

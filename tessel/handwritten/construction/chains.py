"""Check that a pipeline is a chain as a rule requires, and lay out its streams on the chain's devices.

    one stage per device   several rounds        a V, there and back
    device 0   0           device 0   0   2      device 0   0     3
    device 1     1         device 1     1   3    device 1     1 2

Devices may be numbered in any order. The number of micro-batches, which rules are asked for, does not matter
to any. Checked in tests/tessel/handwritten/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tessel.handwritten.construction.stages import Pipeline
from tessel.instruction import Instruction


def why_no_chain(pipeline: Pipeline, micro_batches: int) -> str | None:
    """Return why the pipeline is not one chain with at most one stage per device, or None if it is."""
    devices = pipeline.chain_devices()
    if devices is None:
        return "its stages are not one chain of stages on one device each"
    if len(set(devices)) < len(devices):
        return "a device has several stages, and the rule gives each device one"
    return None


def why_no_split_chain(pipeline: Pipeline, micro_batches: int) -> str | None:
    """Return why the pipeline is not one such chain that can split its backward, or None if it is."""
    if not pipeline.is_split:
        return "no stage has a backward in an input and a weight half"
    return why_no_chain(pipeline, micro_batches)


def why_not_interleaved(pipeline: Pipeline, micro_batches: int) -> str | None:
    """Return why the pipeline is not one trained chain that goes round its devices several times, or None."""
    devices = pipeline.chain_devices()
    if devices is None:
        return "its stages are not one chain of stages on one device each"
    round_length = len(set(devices))
    if len(devices) == round_length:
        return "each device has one stage, and the rule needs several"
    if devices != devices[:round_length] * (len(devices) // round_length):
        return "its chain does not go round the devices in the same order each time"
    return None if pipeline.has_backward else "no stage has a backward"


def why_no_split_v(pipeline: Pipeline, micro_batches: int) -> str | None:
    """Return why the pipeline is not one V-shaped chain that can split its backward, or None if it is."""
    if not pipeline.is_split:
        return "no stage has a backward in an input and a weight half"
    devices = pipeline.chain_devices()
    if devices is None:
        return "its stages are not one chain of stages on one device each"
    half = len(devices) // 2
    if len(set(devices)) != half or devices != devices[:half] + devices[:half][::-1]:
        return "its chain is not a V, there and back over all of its devices"
    return None


def streams_by_device(
    pipeline: Pipeline, stream: Callable[[int], Iterable[Instruction]]
) -> tuple[Iterable[Instruction], ...]:
    """Return each device's instructions, given each stage's, for a chain of one stage per device."""
    return pipeline.on_devices(stream(stage) for stage in range(len(pipeline.stages)))

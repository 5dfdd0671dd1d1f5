"""The measured layers of a made-up language model, every figure given."""

from __future__ import annotations

import msgspec

from tuner.plan import Figure, LayersPlan, ShardsPlan, StagePlan, TiedParameter

MIB = 2**20


def given(us: float) -> Figure:
    """Return a latency that was given."""
    return Figure(latency_us=us, source="given")


def layer(number: int, blocks: float, mib: int, *, is_first: bool = False) -> StagePlan:
    """Return a layer of so many blocks' work; the first and the tenth hold the table."""
    forward = 1000.0 * blocks
    return StagePlan(
        name=f"stage{number}",
        layers=(f"layer{number}",),
        inputs=(),
        outputs=(),
        relayed=(),
        parameters=("table",) if is_first or number == 9 else (f"w{number}",),
        forward=given(forward),
        backward=given(2 * forward),
        backward_input=None if is_first else given(1.1 * forward),
        backward_weight=None if is_first else given(forward),
        weight_bytes=mib * MIB,
        saved_bytes=8 * MIB,
        saved_for_weight_bytes=8 * MIB,
        boundary_bytes=MIB // 4,
    )


def divided(whole: StagePlan, count: int) -> StagePlan:
    """Return a layer over so many devices, 50 us of collectives in each function."""

    def part(figure: Figure | None) -> Figure | None:
        return None if figure is None else given(figure.latency_us / count + 50.0)

    return msgspec.structs.replace(
        whole,
        forward=part(whole.forward),
        backward=part(whole.backward),
        backward_input=part(whole.backward_input),
        backward_weight=part(whole.backward_weight),
        weight_bytes=whole.weight_bytes // count,
        saved_bytes=whole.saved_bytes // count,
        shards=ShardsPlan(num_shards=count, axes={"table": 0}, collective_us={}),
    )


def heavy_head(table_mib: int = 150, block_mib: int = 28) -> LayersPlan:
    """An embedding, eight blocks, and a head of five blocks' work that shares the embedding's table."""
    layers = (
        layer(0, 0.1, table_mib, is_first=True),
        *(layer(number, 1.0, block_mib) for number in range(1, 9)),
        layer(9, 5.0, table_mib),
    )
    return LayersPlan(
        model="made",
        device_model="made",
        training=True,
        batch=1,
        layers=layers,
        tied=((TiedParameter("table", 0), TiedParameter("table", 9)),),
        shards={4: (divided(layers[0], 4), divided(layers[-1], 4))},
        undivided="",
        update=given(1600.0),
        updated_bytes=16 * MIB,
        update_moves=3,
    )

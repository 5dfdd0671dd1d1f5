"""Orders as CSV, and layouts of Megatron."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.fuzz import mutation
from benchmarks.fuzz.campaign import Files, Format
from benchmarks.fuzz.formats.changes import TEXT_COUNT, change_by_suffix
from benchmarks.fuzz.formats.schedules import sample_placements, sample_schedules, scheduler_errors


def orders_format() -> Format:
    from tessel.documents import read_document
    from tessel.engine import actions_from_csv, actions_of, actions_to_csv, schedule_of_actions

    placement = sample_placements()[0]

    def read(folder: Path) -> None:
        actions = actions_from_csv(read_document(folder / "orders.csv").decode())
        schedule_of_actions(placement, actions)

    def samples() -> list[Files]:
        return [{"orders.csv": actions_to_csv(actions_of(sample_schedules()[0])).encode()}]

    return Format(
        name="orders",
        count=TEXT_COUNT,
        samples=samples,
        change=change_by_suffix(csv=mutation.changed_table),
        read=read,
        own_errors=scheduler_errors(),
    )


def megatron_layout_format() -> Format:
    from tessel.documents import read_document
    from tessel.exports.megatron import megatron_orders
    from tessel.jobs.check_source import read_layout_text

    def read(folder: Path) -> None:
        layout = read_layout_text("layout.txt", read_document(folder / "layout.txt").decode(), 2)
        megatron_orders(layout, 4)

    texts = ("Et|(tt|)*30L", "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", "Et*3|(tt|)*28,m|L")
    names = b'[["embedding", "decoder"], ["decoder", "decoder", "loss"]]'
    return Format(
        name="megatron-layout",
        count=TEXT_COUNT,
        samples=lambda: [{"layout.txt": text} for text in (*map(str.encode, texts), names)],
        change=change_by_suffix(txt=_changed_layout),
        read=read,
        own_errors=scheduler_errors(),
    )


def _changed_layout(rng: random.Random, content: bytes) -> bytes:
    """Return a layout with pieces of layouts, or any bytes, put in, taken out or over others."""
    text = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        piece = rng.choice(
            (b"t", b"|", b"(", b")", b"*2", b"*0", b"*999999999", b"m", b"E", b"L", b",", b"(t|)*3", b"[")
        )
        at = rng.randint(0, len(text))
        text[at : at + rng.choice((0, 0, 1, 3))] = piece if rng.random() < 0.8 else rng.randbytes(2)
    return bytes(text)

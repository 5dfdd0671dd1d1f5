"""A row of the report: a network in a data type, with threads, a batch and an instruction set."""

from __future__ import annotations

from dataclasses import dataclass

CODES = {"avx512": "cpu", "avx2": "llvm -mcpu=haswell"}
"""Targets: this machine's own, and for the kernels compiled here code of a processor without AVX-512.

Libraries choose their instructions themselves, by the processor that is there.
"""

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one line of the report is about."""

    network: str
    dtype: str
    threads: int
    batch: int
    code: str = "avx512"

    @property
    def name(self) -> str:
        """The row as text, from which `Row.parse` makes it again."""
        return f"{self.network}/{self.dtype}/{self.threads}/{self.batch}/{self.code}"

    @classmethod
    def parse(cls, text: str) -> Row:
        """Return the row that a text names.

        Raises:
            ValueError: the text names none.
        """
        parts = text.split("/")
        if len(parts) == 5 and parts[1] in DTYPES and parts[4] in CODES:
            network, dtype, threads, batch, code = parts
            if threads.isdigit() and batch.isdigit() and int(threads) and int(batch):
                return cls(network=network, dtype=dtype, threads=int(threads), batch=int(batch), code=code)
        raise ValueError(
            f"{text!r} names no row; write NETWORK/{'|'.join(DTYPES)}/THREADS/BATCH/{'|'.join(CODES)}"
        )


def _settings(network: str, code: str) -> tuple[Row, ...]:
    """Return the eight settings of data type, threads and batch for an instruction set."""
    return tuple(
        Row(network=network, dtype=dtype, threads=threads, batch=batch, code=code)
        for dtype in DTYPES
        for threads in (1, 2)
        for batch in (1, 8)
    )


UNTUNED = tuple(
    Row(network=network, dtype=dtype, threads=threads, batch=batch)
    for threads, batch in ((1, 1), (2, 8), (2, 1), (1, 8))
    for dtype in DTYPES
    for network in ("llama_block", "resnet18", "swin_t")
)
"""Networks that nobody tuned for; a run that is stopped has each of them in the settings that came first."""

SETS = {
    "avx512": _settings("two_tower", "avx512"),
    "avx2": _settings("two_tower", "avx2"),
    "untuned": UNTUNED,
}

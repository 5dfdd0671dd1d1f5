"""Ways to change a file that a stranger might: by its bytes, by its JSON, by the entries of its archive.

All randomness comes from the generator that is given, so a seed names a mutant for good. What is put in place
of what was there is what has broken readers before: truncations, flipped bits, deep nests, huge numbers, NaN,
keys twice, paths that lead elsewhere, control characters, ends of comments and scripts, and code.
"""

from __future__ import annotations

import io
import json
import random
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MARKER = "/tmp/tessel-fuzz-marker"
"""A file that code in a mutant would create: if it is ever there, a reader has run that code."""

CODE = (
    f"__import__('pathlib').Path('{MARKER}').touch()",
    f"s0 + __import__('os').system('touch {MARKER}')",
    f"x={{}}.__class__.__base__.__subclasses__() or open('{MARKER}', 'w')",
    "json:tool",
    "os:system",
    "torch.os.system",
)

TEXTS = (
    *CODE,
    "",
    " ",
    "\x00",
    "\x1b[2J\x1b]0;owned\x07",
    "two\nlines\r\nand\u2028more",
    "<!--<script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "]]>--><![CDATA[",
    "$\\frac{$",
    "\\",
    "'\"`;--",
    "../../../../etc/passwd",
    "/dev/zero",
    "C:\\windows",
    "%s%n{0}{x!r:>99999999}",
    "\u202egnirts\ufeff",
    "\U0001f4a5",
    "é" * 300,
    "x" * 100_000,
    "-1",
    "1e999",
)

_RAW = re.compile(r'"@raw@([0-9a-f]*)@"')


def _raw(text: str) -> str:
    """Return a text that stands for what JSON cannot say, until it is written (see `changed_json`)."""
    return f"@raw@{text.encode().hex()}@"


NUMBERS: tuple[object, ...] = (
    *(0, -1, 1, 2, 3, 7, 255, 65536, 10**6, 10**9, 2**31, 2**32, -(2**31), 2**53, 10**15, 10**18),
    *(2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 0.5, -0.0, 1e308, 5e-324),
    *map(_raw, ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "0x10")),
)

OTHERS: tuple[object, ...] = (
    *(None, True, False, [], {}, [[]], {"": 0}),
    *map(_raw, ("[" * 5000, '{"a":' * 5000, "[" * 500 + "]" * 500, "", "/**/1", '"')),
)

PIECES = (
    *(text.encode() for text in TEXTS if len(text) < 1000),
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\0", b"\xff", b"\\ud800", b"null", b"-1", b"1e999"),
    *(b"NaN", b"9" * 400, b"[" * 3000, b'{"a":' * 3000, b'"' * 3, b"0" * 30, b"\xef\xbb\xbf", b"\x80" * 9),
)


def changed_bytes(rng: random.Random, content: bytes) -> bytes:
    """Return the content with one to four changes of its bytes."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(content) + 1)
        end = min(len(content), start + int(rng.expovariate(0.1)))
        match rng.randrange(6):
            case 0 if start < len(content):
                flipped = content[start] ^ 1 << rng.randrange(8)
                content = content[:start] + bytes([flipped]) + content[start + 1 :]
            case 1:
                content = content[:start] + content[end:]
            case 2:
                content = content[:start] + rng.choice(PIECES) + content[end:]
            case 3:
                at = rng.randrange(len(content) + 1)
                content = content[:at] + content[start:end] * rng.choice((1, 1, 50)) + content[at:]
            case 4:
                content = content[:start] + rng.randbytes(end - start) + content[end:]
            case _:
                content = content[:start] if rng.random() < 0.3 else content[start:] + content[:start]
    return content


def changed_json(rng: random.Random, document: Any) -> bytes:
    """Return the text of a document with one to three changes of its values, keys and lists."""
    document = json.loads(json.dumps(document))
    if rng.random() < 0.2:
        document = _renamed(rng, document)
    else:
        for _ in range(rng.randint(1, 3)):
            document = _changed_value(rng, document)
    text = json.dumps(document, ensure_ascii=rng.random() < 0.5)
    text = _RAW.sub(lambda found: bytes.fromhex(found[1]).decode(), text)
    return text.encode("utf-8", "surrogatepass")


def _renamed(rng: random.Random, document: Any) -> Any:
    """Return the document with one text, and one number, changed wherever they stand."""
    table = {}
    for kind, others in ((str, TEXTS), (int, (0, 1, 2, 10**6, 2**31, 2**40))):
        found = sorted({value for value in _leaves(document) if type(value) is kind}, key=str)
        if found and rng.random() < 0.7:
            table[kind, rng.choice(found)] = rng.choice(others)

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            return {table.get((str, key), key): change(item) for key, item in value.items()}
        if isinstance(value, list):
            return [change(item) for item in value]
        return table.get((type(value), value), value)

    return change(document)


def _leaves(document: Any) -> Iterator[Any]:
    if isinstance(document, dict | list):
        for value in document.values() if isinstance(document, dict) else document:
            yield from _leaves(value)
    else:
        yield document


def _changed_value(rng: random.Random, document: Any) -> Any:
    """Return the document with a change at a random place."""
    if isinstance(document, dict) and document and rng.random() < 0.9:
        key = rng.choice(list(document))
        match rng.randrange(12):
            case 0:
                return {name: value for name, value in document.items() if name != key}
            case 1:
                return document | {rng.choice(TEXTS[:40]): document[key]}
            case 2:
                return {rng.choice(TEXTS) if name == key else name: value for name, value in document.items()}
            case 3:  # twice the same key: the second is written by a name that is told apart here alone
                return document | {_raw(json.dumps(key)): rng.choice(NUMBERS)}
            case 4:
                other = rng.choice(list(document))
                return document | {key: document[other], other: document[key]}
            case _:
                return document | {key: _changed_value(rng, document[key])}
    if isinstance(document, list) and document and rng.random() < 0.9:
        index = rng.randrange(len(document))
        match rng.randrange(10):
            case 0:
                return document[:index] + document[index + 1 :]
            case 1:
                return document[:index] + [document[index]] * rng.choice((2, 3, 300)) + document[index:]
            case 2:
                return rng.sample(document, len(document))
            case _:
                changed = _changed_value(rng, document[index])
                return [*document[:index], changed, *document[index + 1 :]]
    return _other_value(rng, document)


def _other_value(rng: random.Random, value: Any) -> Any:
    if rng.random() < 0.7:
        if isinstance(value, str):
            return rng.choice((*TEXTS, value + rng.choice(TEXTS[:40])))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return rng.choice((*NUMBERS, value + 1, value - 1, -value, float(value)))
    return rng.choice((*NUMBERS, *TEXTS, *OTHERS))


def changed_text_file(rng: random.Random, content: bytes) -> bytes:
    """Return a file's JSON documents, one a line or one in all, with changes of either kind."""
    if rng.random() < 0.4:
        return changed_bytes(rng, content)
    lines = content.splitlines(keepends=True) if content.count(b"\n{") else [content]
    index = rng.randrange(len(lines))
    try:
        changed = changed_json(rng, json.loads(lines[index]))
    except ValueError:
        return changed_bytes(rng, content)
    end = b"\n" if lines[index].endswith(b"\n") else b""
    return b"".join([*lines[:index], changed + end, *lines[index + 1 :]])


def changed_table(rng: random.Random, content: bytes) -> bytes:
    """Return comma-separated lines with changes of cells, or of bytes."""
    if rng.random() < 0.4:
        return changed_bytes(rng, content)
    rows = [line.split(",") for line in content.decode().splitlines()]
    for _ in range(rng.randint(1, 3)):
        row = rng.choice(rows)
        index = rng.randrange(len(row))
        cells = (*TEXTS, "0F0", "1B0", "0F999999", "999999F0", "0f0", "0F-1", "F", "0F0" * 1000, "٣F٣")
        row[index] = rng.choice(cells)
        if rng.random() < 0.3:
            rows.insert(rng.randrange(len(rows)), (rng.choice(rows) * rng.choice((1, 2, 100)))[:1000])
    return "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass")


def changed_archive(rng: random.Random, content: bytes) -> bytes:
    """Return a zip archive with changes of an entry, of its directory, or of its bytes."""
    if rng.random() < 0.25:
        return changed_bytes(rng, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    documents = [name for name, _ in entries if name.endswith(".json")]
    chosen = rng.choice(documents) if rng.random() < 0.8 else rng.choice(entries)[0]
    changed = []
    for name, held in entries:
        if name != chosen:
            changed.append((name, held))
            continue
        match rng.randrange(10):
            case 0:
                changed.append((rng.choice(TEXTS[:40]) or "empty", held))
            case 1:
                changed += [(name, held), (name, rng.randbytes(9))]
            case 2:
                continue
            case _:
                change = changed_text_file if name.endswith(".json") else changed_bytes
                changed.append((name, change(rng, held)))
    return zipped(changed, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))


_MAX_ZIP_NAME = 60_000
"""Bytes of an entry's name: an archive counts them in 16 bits."""


def zipped(entries: Sequence[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return an archive of the entries, without compression unless told otherwise."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore")  # of names that occur twice
        for name, held in entries:
            kept = name.encode(errors="replace")[:_MAX_ZIP_NAME].decode(errors="ignore")
            archive.writestr(zipfile.ZipInfo(kept), held, method)
    return buffer.getvalue()


def changed_folder(
    rng: random.Random, files: Mapping[str, bytes], change: Mapping[str, Any]
) -> dict[str, bytes]:
    """Return the files with one changed by the function for its suffix, or gone."""
    chosen = rng.choice(sorted(files))
    if len(files) > 1 and rng.random() < 0.03:
        return {name: held for name, held in files.items() if name != chosen}
    suffix = "." + chosen.rpartition(".")[2]
    return {**files, chosen: change.get(suffix, changed_bytes)(rng, files[chosen])}

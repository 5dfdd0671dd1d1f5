"""Documents held against the JSON Schemas of docs/schemas/, by a validator that shares no code with them."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from scripts.documents.schemas import PRINTED

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "schemas"


@functools.cache
def validator(name: str) -> Draft202012Validator:
    """Return the validator of `docs/schemas/NAME.schema.json`."""
    schema = json.loads((FOLDER / f"{name}.schema.json").read_bytes())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def check_document(name: str, text: str | bytes) -> Any:
    """Return the document that a file of this kind holds; fail where it is not as its schema says."""
    document = json.loads(text)
    validator(name).validate(document)
    return document


def check_printed(arguments: Sequence[object], text: str) -> Any:
    """Return the document that a command with these arguments printed, held against its schema."""
    words = [str(argument) for argument in arguments]
    words = [word for word in words if not word.startswith("-")]
    command = next(name for name in (" ".join(words[:2]), words[0]) if name in PRINTED)
    return check_document(f"tessel-{command.replace(' ', '-')}", text)

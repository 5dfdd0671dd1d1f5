"""Write the JSON Schemas of docs/schemas/ from the types; `--check` only says which are out of date."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.documents.schemas import schema_documents  # noqa: E402 (the repository may not be installed)

FOLDER = ROOT / "docs" / "schemas"


def main(*, check: bool) -> int:
    """Write the schemas, or return 1 where one is missing, left over or not as it would be written."""
    wanted = schema_documents()
    there = {path.name: path for path in FOLDER.glob("*")} if FOLDER.is_dir() else {}
    stale = sorted(there.keys() - wanted.keys())
    changed = [name for name, text in wanted.items() if name not in there or there[name].read_bytes() != text]
    if check:
        for name in (*stale, *changed):
            print(f"docs/schemas/{name} is out of date; run python .ci/write_schemas.py")
        return 1 if stale or changed else 0
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        there[name].unlink()
    for name in changed:
        (FOLDER / name).write_bytes(wanted[name])
    print(f"{len(wanted)} schemas, {len(changed)} written, {len(stale)} removed")
    return 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))

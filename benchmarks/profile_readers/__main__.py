"""Write another planner's profile as the table that `tessel plan` takes; see the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.profile_readers.load import FORMATS, load
from tessel.errors import DocumentError
from tessel.profiles.table import save_table


def main() -> int:
    """Read, write and say what was assumed; 2 where the file is no profile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="the profile, or a folder that holds it")
    parser.add_argument("--out", type=Path, required=True, help="the table: .csv or .json")
    parser.add_argument("--format", choices=FORMATS, help="detected if left out")
    parser.add_argument("--entry", help="MODEL/GPU, of a file of Sailor that holds several profiles")
    parser.add_argument("--num-layers", type=int, help="layers of the model, where the file holds one block")
    parser.add_argument(
        "--micro-batch", type=int, help="samples of a micro-batch, where the file does not say"
    )
    given = parser.parse_args()
    try:
        profile = load(
            given.file,
            format_name=given.format,
            entry=given.entry,
            num_layers=given.num_layers,
            micro_batch=given.micro_batch,
        )
    except DocumentError as error:
        print(error, file=sys.stderr)
        return 2
    for note in profile.notes:
        print(note, file=sys.stderr)
    save_table(profile, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tessel` is the `tessel` command."""

from tessel.entry.command import run

if __name__ == "__main__":
    run()

"""`python -m scripts` is the `tessel` command."""

from tessel.entry.command import run

if __name__ == "__main__":
    run()

"""`python -m scripts` is the `tessel` command."""

from scripts.start import run

if __name__ == "__main__":
    run()

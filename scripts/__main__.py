"""`python -m scripts` is the `tessel` command."""

from scripts.main import run

if __name__ == "__main__":
    run()

"""The entry of the `tessel` command: Ctrl-C is handled before anything else is imported."""

try:
    from tessel.progress import interrupts

    interrupts.install()
except KeyboardInterrupt:
    # Before the handler stands there is nothing to keep and nothing to say it with but this.
    import os

    os.write(2, b"tessel: interrupted\n")
    os._exit(130)


def run() -> None:
    """Run the command with the process's arguments and exit with its status."""
    from scripts import main

    try:
        main.run()
    except KeyboardInterrupt:  # in the moment in which a command ends
        interrupts.leave()

"""What a job says on stderr while it runs, and how Ctrl-C ends it: in commands, scripts and notebooks."""

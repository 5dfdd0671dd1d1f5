"""Progress of a job on stderr, and the end of it by Ctrl-C: in commands, scripts and notebooks."""

"""The commands: parse, call one function, show progress, print."""

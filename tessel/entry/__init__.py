"""How the command begins: Ctrl-C, whose packages are found, and what is compiled ahead."""

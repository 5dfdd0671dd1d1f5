"""Plans and orders as the files of other frameworks, one module a framework."""

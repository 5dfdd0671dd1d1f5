"""`tessel check`: options, what is read, and what is printed."""

"""stdout and stderr: results and tables, progress, streams, and Ctrl-C."""

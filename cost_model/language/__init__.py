"""The language model: reads a kernel, similar ones and its best trials, and writes decisions."""

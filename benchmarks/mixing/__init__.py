"""Whether a mix of backends pays: data types, threads, batches and instruction sets, and untuned networks."""

"""Programs of torch into Relax: modules, and files of `torch.export` that are read without running code."""

"""Cut a model into pipeline stages and find what each stage costs."""

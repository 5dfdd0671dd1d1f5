"""Dynamic programs for the repetend of chains: nested, as a pipeline's are, and crossing."""

"""Take a model and a target; find the cheapest partition over backends and the costs of pipeline stages."""

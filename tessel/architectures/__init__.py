"""Language models as their config files describe them: layers, parameters, work, and predicted costs."""

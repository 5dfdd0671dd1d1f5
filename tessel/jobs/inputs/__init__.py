"""Inputs of a job: values of options as people write them, tables, models, orders and plans."""

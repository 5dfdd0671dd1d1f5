"""Costs of stages, hops, collectives and whole steps of a layout: time and memory."""

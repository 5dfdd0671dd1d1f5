"""Strategies that find whole programs to measure, one per module; `propose` runs those that are asked for."""

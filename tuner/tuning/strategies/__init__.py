"""Strategies that find whole programs to measure, one a module; `propose` runs those that are asked for."""

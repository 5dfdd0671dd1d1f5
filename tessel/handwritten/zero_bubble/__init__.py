"""Schedules that split the backward to fill bubbles: the zero-bubble family, with its smaller memories."""

"""Processes that each run one rank's actions, and what they exchange."""

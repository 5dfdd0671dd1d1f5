"""The main jobs as calls: plan, tune, check, and what can be done with a plan.

The roof of the house: commands parse their options, call one function of these, and print what it returns.
"""

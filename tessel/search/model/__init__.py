"""The search problem: a placement and its limits as arrays, longest paths, memory needs, and the search
budget."""

"""The search problem: a placement and its limits as arrays, distances, memory needs, and the search
budget."""

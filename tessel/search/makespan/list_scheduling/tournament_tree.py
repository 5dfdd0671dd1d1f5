"""A tournament tree over the blocks: which next task could end first; O(log blocks) a change."""

from __future__ import annotations

from tessel.search.jit.compiled import compiled_leaf
from tessel.search.makespan.list_scheduling.listing import NEVER
from tessel.search.model.instance import IntArray


@compiled_leaf
def set_leaf(tree: IntArray, block: int, value: int) -> None:
    """Put a value into the tree, and the least of each pair above it."""
    node = len(tree) // 2 + block
    if tree[node] == value:
        return
    tree[node] = value
    node //= 2
    while node > 0:
        least = min(tree[2 * node], tree[2 * node + 1])
        if tree[node] == least:
            return
        tree[node] = least
        node //= 2


@compiled_leaf
def first_in_tree(tree: IntArray) -> int:
    """Return the block with the least value, the first of several, or -1 if none is ready."""
    size = len(tree) // 2
    if tree[1] == NEVER:
        return -1
    node = 1
    while node < size:
        node *= 2
        if tree[node] > tree[node + 1]:
            node += 1
    return int(node - size)

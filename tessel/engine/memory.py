"""The memory that a rank's process is predicted to hold, from its stages' own plans and its order of actions.

The rule: weights, one gradient for each weight of each stage, what micro-batches keep between their actions,
and for each function the storages that TVM planned for its results and intermediate tensors. TVM's machine
takes storages from a pool, by size rounded to whole pages, and never gives one back to the system; so of each
size the process holds as many as were ever in use at once. What is sent stays until the step ends. What comes
from other ranks may have come as early as its receive is posted. No optimizer: `tessel run` has none.

    F0      F1      B0              of one size class: in use 6, 12, then 12 + 4 storages; it holds 16
    ▆       ▆▆      ▆▆ + backward's

Left out: what libraries allocate within a call, and buffers of connections, some megabytes together. Checked
against processes in tests/scripts/commands/run/test_run_memory.py, and by hand in
tests/tessel/engine/test_memory.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tessel.engine.actions import EXPECTED_AHEAD, Action, ActionKind
from tuner.plan import StageMemory

_PAGE_BYTES = 4096
"""What TVM's pool rounds sizes up to."""

_Key = tuple[int, int, str]
"""Names a tensor: its stage, its micro-batch, and its name."""

_SENT = "sent"


def predict_held_bytes(orders: Iterable[Sequence[Action]], stages: Mapping[int, StageMemory]) -> int:
    """Return the most that one rank's process holds while it runs these steps one after another.

    Args:
        orders: its actions, of one step of each schedule.
        stages: that it holds, by number.
    """
    known = {name: num_bytes for stage in stages.values() for name, num_bytes in stage.weights.items()}
    process = _Process(stages)
    for _ in range(2):  # The first steps fill the pool, in which the second ones find what they take.
        for actions in orders:
            process.run_step(actions)
    return sum(known.values()) + process.peak_bytes


class _Process:
    """Plays the actions, and counts what is held."""

    def __init__(self, stages: Mapping[int, StageMemory]) -> None:
        self._stages = stages
        self._heap_bytes = 0
        self._in_use: Counter[int] = Counter()
        self._pool: Counter[int] = Counter()
        self._pool_bytes = 0
        self._tensors: dict[_Key, tuple[bool, int]] = {}
        self._held_by: dict[object, set[_Key]] = {}
        self._holders: Counter[_Key] = Counter()
        self._has_gradients: set[int] = set()
        self.peak_bytes = 0

    def run_step(self, actions: Sequence[Action]) -> None:
        """Play one step; its gradients and what was sent are gone when the next begins."""
        for position, action in enumerate(actions):
            for ahead in actions[position : position + EXPECTED_AHEAD]:
                self._expect(ahead)
            self._run(action, self._stages[action.stage])
            self._release(("posted", action.stage, action.micro_batch, action.kind))
        for holder in list(self._held_by):
            if not (isinstance(holder, tuple) and holder[0] == "inputs"):
                self._release(holder)
        for number in self._has_gradients:
            self._heap_bytes -= _gradient_bytes(self._stages[number])
        self._has_gradients.clear()

    def _expect(self, action: Action) -> None:
        """Hold what an action takes from another rank; a neighbouring stage of this one hands on its own."""
        stage, number = self._stages[action.stage], action.stage
        if action.kind is ActionKind.FORWARD:
            tensors = {} if number - 1 in self._stages else stage.received
        elif action.kind is ActionKind.BACKWARD_WEIGHT or number + 1 in self._stages:
            tensors = {}
        else:
            tensors = stage.received_gradients
        posted = ("posted", number, action.micro_batch, action.kind)
        self._hold(posted, self._new(number, action.micro_batch, tensors))

    def _run(self, action: Action, stage: StageMemory) -> None:
        number, micro_batch = action.stage, action.micro_batch
        kept = ("kept", number, micro_batch)
        self._hold(("inputs", micro_batch), self._new(number, micro_batch, stage.inputs))
        if action.kind is ActionKind.FORWARD:
            self._forward(action, stage, kept)
            return
        if action.kind is not ActionKind.BACKWARD_WEIGHT:
            self._hold("given", self._new(number, micro_batch, stage.received_gradients))
        function = {
            ActionKind.BACKWARD: "backward",
            ActionKind.BACKWARD_INPUT: "backward_input",
            ActionKind.BACKWARD_WEIGHT: "backward_weight",
        }[action.kind]
        if function == "backward_input" and function not in stage.storages:
            self._hold(kept, self._held_by.get("given", set()))
            self._release("given")
            return
        function = function if function in stage.storages else "backward"
        if stage.recomputes and action.kind is not ActionKind.BACKWARD_WEIGHT:
            again = self._call(action, stage, "forward", stage.saved)
            self._hold("again", again)
        is_half = function == "backward_input"
        wanted = stage.sent_gradients | (stage.saved_for_weight if is_half else {})
        made = self._call(action, stage, function, wanted, adds=not is_half)
        self._hold(_SENT, {key for key in made if key[2] in stage.sent_gradients})
        if is_half:
            names = set(stage.saved_for_weight)
            before = self._held_by.get(kept, set()) | self._held_by.get("again", set())
            before |= self._held_by.get("given", set())
            self._hold("half", {key for key in before | made if key[2] in names})
            self._release(kept)
            self._held_by[kept] = self._held_by.pop("half")
        else:
            self._release(kept)
        self._release("again")
        self._release("given")

    def _forward(self, action: Action, stage: StageMemory, kept: object) -> None:
        given = self._new(action.stage, action.micro_batch, stage.received)
        self._hold("given", given)
        made = self._call(action, stage, "forward", stage.sent | ({} if stage.recomputes else stage.saved))
        if "backward" in stage.storages:
            names = set(stage.received if stage.recomputes else stage.saved)
            self._hold(kept, {key for key in given | made if key[2] in names})
        self._hold(_SENT, {key for key in made if key[2] in stage.sent})
        self._release("given")

    def _call(
        self,
        action: Action,
        stage: StageMemory,
        function: str,
        wanted: Mapping[str, int],
        *,
        adds: bool = False,
    ) -> set[_Key]:
        """Call a function, and return its results among what is wanted; they are not held yet."""
        storages = Counter(_rounded(num_bytes) for num_bytes in stage.storages[function])
        self._in_use += storages
        self._fill_pool()
        if adds and action.stage not in self._has_gradients:
            self._has_gradients.add(action.stage)
            self._heap_bytes += _gradient_bytes(stage)
        self._note()
        results = {}
        for name, num_bytes in wanted.items():
            key = (action.stage, action.micro_batch, name)
            is_pooled = storages[_rounded(num_bytes)] > 0
            if key in self._tensors or name not in stage.outputs[function]:
                continue
            if is_pooled:
                storages[_rounded(num_bytes)] -= 1
            else:
                self._heap_bytes += num_bytes
            results[key] = (not is_pooled, num_bytes)
        self._in_use -= storages
        self._tensors.update(results)
        self._note()
        return set(results)

    def _new(self, stage: int, micro_batch: int, tensors: Mapping[str, int]) -> set[_Key]:
        """Return tensors that lie beside the pool, such as buffers of what comes from other stages."""
        keys = {(stage, micro_batch, name) for name in tensors}
        for key in keys - set(self._tensors):
            self._tensors[key] = (True, tensors[key[2]])
            self._heap_bytes += tensors[key[2]]
        return keys

    def _hold(self, holder: object, keys: set[_Key]) -> None:
        held = self._held_by.setdefault(holder, set())
        self._holders.update(keys - held)
        held |= keys

    def _release(self, holder: object) -> None:
        for key in self._held_by.pop(holder, set()):
            self._holders[key] -= 1
            if self._holders[key] > 0:
                continue
            on_heap, num_bytes = self._tensors.pop(key)
            if on_heap:
                self._heap_bytes -= num_bytes
            else:
                self._in_use[_rounded(num_bytes)] -= 1

    def _fill_pool(self) -> None:
        for size, count in self._in_use.items():
            if count > self._pool[size]:
                self._pool_bytes += size * (count - self._pool[size])
                self._pool[size] = count

    def _note(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self._heap_bytes + self._pool_bytes)


def _gradient_bytes(stage: StageMemory) -> int:
    return sum(stage.weights.values()) if "backward" in stage.storages else 0


def _rounded(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES

"""The backend `tessel` of `torch.compile`: graphs for inference run as compiled programs.

    torch.compile(module, backend="tessel")                              # rules, and what the records know
    torch.compile(module, backend="tessel", options={"tune": "2min"})    # measures for so long, once a graph

torch finds it by its entry point. A graph that cannot be compiled stays torch's own: training graphs, open
shapes, devices other than the CPU, graphs that write their inputs, operators without a converter, and those
whose program gives other numbers than the graph on the example inputs. Each reason is told once. Weights are
those of the first call; once one of them was changed or replaced, the graph is compiled again. Checked in
tests/tessel/compiling/test_dynamo.py.
"""

from __future__ import annotations

import copy
import logging
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tessel.compiling.partitioning import check_options, compile_within
from tessel.compiling.program import Program

logger = logging.getLogger(__name__)

Run = Callable[..., Any]

_STATIC = "_dynamo_static_input_type"
"""Note of torch's on inputs of a graph that are weights or buffers of its module."""

_MAX_COMPILED = 4
"""How often one graph is compiled because its weights changed; what trains does not come to rest."""

_UNITS_S = {"": 1.0, "s": 1.0, "ms": 1e-3, "min": 60.0, "m": 60.0, "h": 3600.0}

_told: set[str] = set()


def tessel(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Run:
    """Return what runs a graph: a compiled program, or torch's own code where it cannot be one.

    Args:
        graph: as torch captured it.
        example_inputs: tensors and numbers that it is called with.
        options: `tune`, how long to measure (`"2min"`; nothing is measured if left out), and those of
            `tessel.partition`.

    Raises:
        TypeError: there is no such option.
        ValueError: an option's value is out of range.
    """
    settings = dict(options or {})
    tune_s = _seconds(settings.pop("tune", 0))
    check_options(**settings)  # a misspelt option is an error, and no reason to run as torch does
    reason = _obstacle(example_inputs)
    if reason:
        return _torch_own(graph, example_inputs, reason)
    return _Compiled(graph, example_inputs, tune_s, settings).first_run(example_inputs)


class _Compiled:
    """One graph, and the program that it is with the weights that it had last."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        tune_s: float,
        settings: Mapping[str, Any],
    ) -> None:
        self._graph = graph
        self._tune_s = tune_s
        self._settings = settings
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._static = [
            at
            for at, (node, value) in enumerate(zip(nodes, example_inputs, strict=True))
            if isinstance(value, torch.nn.Parameter) or _STATIC in node.meta.get("tensor_dict", {})
        ]
        self._given = [at for at in range(len(nodes)) if at not in set(self._static)]
        self._state: list[tuple[int, int]] = []
        self._run: Run = graph.forward
        self._num_compiled = 0

    def first_run(self, inputs: Sequence[Any]) -> Run:
        """Compile the graph; return what runs it."""
        self._compile(inputs)
        return self._checked_run

    def _checked_run(self, *inputs: Any) -> Any:
        """Run on inputs; compile again where weights are not what they were."""
        if self._num_compiled and [_state_of(inputs[at]) for at in self._static] != self._state:
            self._compile(inputs)
        return self._run(*inputs)

    def _compile(self, inputs: Sequence[Any]) -> None:
        self._state = [_state_of(inputs[at]) for at in self._static]
        if self._num_compiled == _MAX_COMPILED:
            self._num_compiled = 0
            self._run = _torch_own(self._graph, inputs, "its weights change again and again")
            return
        try:
            program = self._program(inputs)
        except Exception as error:  # foreign code: torch traces the graph, backends build what it holds
            logger.debug("a graph was not compiled", exc_info=True)
            self._num_compiled = 0
            self._run = _torch_own(self._graph, inputs, _sentence(error))
            return
        self._num_compiled += 1
        given = self._given
        self._run = lambda *every: program(*[every[at] for at in given])

    def _program(self, inputs: Sequence[Any]) -> Program:
        module = _with_weights(self._graph, {at: inputs[at] for at in self._static})
        examples = tuple(inputs[at] for at in self._given)
        program = compile_within(module, examples, seconds=self._tune_s, **self._settings)
        with torch.inference_mode():
            expected = [each for each in self._graph(*inputs) if isinstance(each, torch.Tensor)]
            found = [each for each in program(*examples) if isinstance(each, torch.Tensor)]
        for position, (one, other) in enumerate(zip(found, expected, strict=True)):
            if not _agrees(one, other):
                raise RuntimeError(f"result {position} of its program differs from torch's")
        return program


def _obstacle(inputs: Sequence[Any]) -> str:
    """Say why a graph is not for a compiled program; empty where nothing speaks against it."""
    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    if len(tensors) < len(inputs):
        return "its shapes are open; compile with dynamic=False"
    if any(each.device.type != "cpu" for each in tensors):
        return "it runs on another device than the CPU"
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return "it trains; call it under torch.no_grad() or torch.inference_mode()"
    return ""


def _torch_own(graph: torch.fx.GraphModule, inputs: Sequence[Any], reason: str) -> Run:
    """Return what torch itself makes of a graph, and say why, once for each reason."""
    if reason not in _told:
        _told.add(reason)
        warnings.warn(f"a graph stays torch's own, because {reason}", RuntimeWarning, stacklevel=2)
    try:
        compiled: Run = torch._dynamo.lookup_backend("inductor")(graph, list(inputs))
    except Exception:  # it has no compiler here, or cannot take the graph either
        logger.debug("inductor did not take a graph", exc_info=True)
        return graph.forward
    return compiled


def _with_weights(graph: torch.fx.GraphModule, weights: Mapping[int, torch.Tensor]) -> torch.fx.GraphModule:
    """Return the graph with some of its inputs as weights of its own, which are the same tensors."""
    module = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for at, weight in weights.items():
        name = f"weight_{at}"
        module.register_buffer(name, weight.detach())
        with module.graph.inserting_before(placeholders[at]):
            placeholders[at].replace_all_uses_with(module.graph.get_attr(name))
        module.graph.erase_node(placeholders[at])
    module.recompile()
    return module


def _state_of(weight: torch.Tensor) -> tuple[int, int]:
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _agrees(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if not expected.is_floating_point():
        return bool((found == expected).all())
    tolerance = 1e-3 if expected.dtype in (torch.float32, torch.float64) else 3e-2
    scale = float(expected.abs().nan_to_num().max()) if expected.numel() else 0.0
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _seconds(duration: str | float) -> float:
    """Return seconds from a number of them, or a text such as `2min`.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(duration, int | float):
        return float(duration)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", duration)
    if found is None or found[2] not in _UNITS_S:
        raise ValueError(f"tune is {duration!r}; give a duration such as '2min', '90s' or 120")
    return float(found[1]) * _UNITS_S[found[2]]


def _sentence(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]

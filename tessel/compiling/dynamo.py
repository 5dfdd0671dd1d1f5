"""The backend `tessel` of `torch.compile`: graphs for inference and for training run as compiled programs.

    torch.compile(module, backend="tessel")                              # rules, and what the records know
    torch.compile(module, backend="tessel", options={"tune": "2min"})    # measures for so long, once a graph

torch finds it by its entry point. A graph that trains is taken apart by torch's AOTAutograd into a forward
and a backward of functional operators, and each is a graph of its own here. A graph is compiled when it
first runs, on its real inputs, and again for another shape. What draws random numbers stays torch's, and the
graph around it is compiled in pieces. A graph that cannot be compiled stays torch's own as a whole: devices
other than the CPU, inference graphs that write their inputs, operators that can neither be converted nor
called, and those whose program gives other numbers than the graph on the inputs. Each reason is told once.

In inference, weights are those of the first call; once one of them was changed or replaced, the graph is
compiled again. In training they are inputs like all others. Checked in
tests/tessel/compiling/test_dynamo.py and test_dynamo_training.py.
"""

from __future__ import annotations

import copy
import logging
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from tessel.compiling.partitioning import check_options, compile_within

logger = logging.getLogger(__name__)

Run = Callable[..., Any]

_STATIC = "_dynamo_static_input_type"
"""Note of torch's on inputs of a graph that are weights or buffers of its module."""

_MAX_COMPILED = 4
"""How often one graph is compiled because its weights changed; what trains does not come to rest."""

_MAX_SHAPES = 8
"""Shapes of its inputs for which one graph is compiled; further ones run as torch runs them uncompiled."""

_MAX_MORE_ROUNDING = 8
"""How much farther than torch's a result may be from that of double precision."""

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
            `tessel.partition`. A graph that trains may measure so long twice: forward and backward.

    Raises:
        TypeError: there is no such option.
        ValueError: an option's value is out of range.
    """
    settings = dict(options or {})
    budget = _Budget(_seconds(settings.pop("tune", 0)), settings)
    check_options(**settings)  # a misspelt option is an error, and no reason to run as torch does
    tensors = [each for each in example_inputs if isinstance(each, torch.Tensor)]
    if any(each.device.type != "cpu" for each in tensors):
        return _torch_own(graph, example_inputs, "it runs on another device than the CPU")
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return _trained(graph, example_inputs, budget)
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    weights = [
        at
        for at, (node, value) in enumerate(zip(nodes, example_inputs, strict=True))
        if isinstance(value, torch.nn.Parameter) or _STATIC in node.meta.get("tensor_dict", {})
    ]
    return _Compiled(graph, budget, weights)


@dataclass(frozen=True, slots=True)
class _Budget:
    """How long a program may be measured, and the options of its search."""

    tune_s: float
    settings: Mapping[str, Any]


def _trained(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], budget: _Budget) -> Run:
    """Return what runs a graph that trains, in a forward and a backward of their own."""

    def compiler(part: torch.fx.GraphModule, _: Sequence[Any]) -> Run:
        run: Run = make_boxed_func(_around_random(part, budget))
        return run

    differentiate: Any = aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=core_aten_decompositions(),
    )
    run: Run = differentiate(graph, list(example_inputs))
    return run


class _Deterministic(OperatorSupportBase):
    """Takes every operator that draws no random numbers."""

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        """Say whether a node may be part of a program."""
        if node.target is operator.getitem:
            return self.is_node_supported(submodules, node.args[0])  # type: ignore[arg-type]  # a node
        return node.op == "call_function" and not _is_random(node)


def _around_random(graph: torch.fx.GraphModule, budget: _Budget) -> Run:
    """Return what runs a graph of functional operators; those that draw random numbers stay torch's."""
    if not any(map(_is_random, graph.graph.nodes)):
        return _Compiled(graph, budget)
    fused: Any = CapabilityBasedPartitioner(
        graph, _Deterministic(), allows_single_node_partition=True
    ).partition_and_fuse()
    for name, part in list(fused.named_children()):
        setattr(fused, name, _Part(part, budget))
    run: Run = fused.forward
    return run


class _Part(torch.nn.Module):
    """A piece of a graph as the module that torch calls; it gives several results, or one."""

    def __init__(self, piece: torch.fx.GraphModule, budget: _Budget) -> None:
        super().__init__()
        (output,) = (node for node in piece.graph.nodes if node.op == "output")
        self._is_one = isinstance(output.args[0], torch.fx.Node)
        if self._is_one:
            output.args = ((output.args[0],),)
            piece.recompile()
        self._run = _Compiled(piece, budget)

    def forward(self, *inputs: Any) -> Any:
        """Return what the piece gives."""
        found = self._run(*inputs)
        return found[0] if self._is_one else found


def _is_random(node: torch.fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


class _Compiled:
    """One graph, and the program that it is for each shape, with the weights that it had last.

    Args:
        budget: of each program.
        weights: positions of inputs that a program holds.
    """

    def __init__(self, graph: torch.fx.GraphModule, budget: _Budget, weights: Sequence[int] = ()) -> None:
        self._graph = graph
        self._budget = budget
        self._weights = tuple(weights)
        self._state: list[tuple[int, int]] | None = None
        self._num_compiled = 0
        self._runs: dict[tuple[Any, ...], Run] = {}

    def __call__(self, *inputs: Any) -> Any:
        """Run on inputs; compile first where their shape is new, or weights are not what they were."""
        if self._weights and self._num_compiled <= _MAX_COMPILED:
            state = [_state_of(inputs[at]) for at in self._weights]
            if state != self._state:
                self._state = state
                self._num_compiled += 1
                self._runs = {}
        run = self._runs.get(shape := tuple(map(_shape_of, inputs)))
        if run is None:
            # A thread of its own has none of the modes that torch is in while a forward or backward runs.
            with ThreadPoolExecutor(1) as thread:
                run = self._runs[shape] = thread.submit(self._compile, inputs).result()
        return run(*inputs)

    @torch.no_grad()
    def _compile(self, inputs: Sequence[Any]) -> Run:
        if self._num_compiled > _MAX_COMPILED:
            return _torch_own(self._graph, inputs, "its weights change again and again")
        if len(self._runs) == _MAX_SHAPES:
            return _uncompiled(self._graph, f"it has met {_MAX_SHAPES} other shapes")
        try:
            return self._program(inputs)
        except Exception as error:  # foreign code: torch traces the graph, backends build what it holds
            logger.debug("a graph was not compiled", exc_info=True)
            return _torch_own(self._graph, inputs, _sentence(error))

    def _program(self, inputs: Sequence[Any]) -> Run:
        """Return the program, compared with the graph on these inputs.

        Raises:
            RuntimeError: it gives other values.
        """
        whole = _with_weights(self._graph, {at: inputs[at] for at in self._weights})
        computing = _Computing.of(whole)
        examples = [each for at, each in enumerate(inputs) if at not in self._weights]
        run: Run = computing.gathered(lambda *_: ())
        if computing.module is not None:
            own = tuple(each.detach() if isinstance(each, torch.Tensor) else each for each in examples)
            program = compile_within(
                computing.module, own, seconds=self._budget.tune_s, **self._budget.settings
            )
            run = computing.gathered(program)
        found, expected = run(*examples), self._graph(*inputs)
        differing = [
            (position, one, other)
            for position, (one, other) in enumerate(zip(found, expected, strict=True))
            if isinstance(other, torch.Tensor) and not _agrees(one, other)
        ]
        if differing and not _as_exact(self._graph, inputs, differing):
            raise RuntimeError(f"result {differing[0][0]} of its program differs from torch's")
        given = [at for at in range(len(inputs)) if at not in self._weights]
        return lambda *every: run(*[every[at] for at in given]) if self._weights else run(*every)


@dataclass(frozen=True, slots=True)
class _Computing:
    """The part of a graph that computes, and where its results belong among the graph's.

    A forward that trains gives back inputs that its backward reads, and None for inputs without gradient.

    Attributes:
        module: gives a tuple of distinct computed tensors; None where the graph gives nothing of its own.
        results: for each result of the graph, its position among those; or, negative, that of an input; or
            the constant that it is.
    """

    module: torch.fx.GraphModule | None
    results: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, graph: torch.fx.GraphModule) -> _Computing:
        """Return the part of a graph; the graph is changed."""
        (output,) = (node for node in graph.graph.nodes if node.op == "output")
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        wanted: list[torch.fx.Node] = []
        results: list[tuple[str, Any]] = []
        for each in output.args[0]:
            if not isinstance(each, torch.fx.Node):
                results.append(("constant", each))
            elif each in placeholders:
                results.append(("input", placeholders.index(each)))
            else:
                wanted += [each] * (each not in wanted)
                results.append(("computed", wanted.index(each)))
        output.args = (tuple(wanted),)
        graph.recompile()
        return cls(graph if wanted else None, tuple(results))

    def gathered(self, program: Run) -> Run:
        """Return what gives the graph's results, of what the part gives."""
        if all(result == ("computed", at) for at, result in enumerate(self.results)):
            return program

        def run(*inputs: Any) -> list[Any]:
            sources = {"computed": program(*inputs), "input": inputs}
            return [sources[kind][at] if kind in sources else at for kind, at in self.results]

        return run


def _torch_own(graph: torch.fx.GraphModule, inputs: Sequence[Any], reason: str) -> Run:
    """Return what torch itself makes of a graph, and say why, once for each reason."""
    run = _uncompiled(graph, reason)
    try:
        compiled: Run = torch._dynamo.lookup_backend("inductor")(graph, list(inputs))
    except Exception:  # it has no compiler here, or cannot take the graph either
        logger.debug("inductor did not take a graph", exc_info=True)
        return run
    return compiled


def _uncompiled(graph: torch.fx.GraphModule, reason: str) -> Run:
    if reason not in _told:
        _told.add(reason)
        warnings.warn(f"a graph stays torch's own, because {reason}", RuntimeWarning, stacklevel=2)
    return graph.forward


def _with_weights(graph: torch.fx.GraphModule, weights: Mapping[int, torch.Tensor]) -> torch.fx.GraphModule:
    """Return a copy of the graph with some of its inputs as weights, which are the same tensors."""
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


def _shape_of(value: Any) -> Any:
    """Return what a program is compiled for of an input: a tensor's shape, or a number itself."""
    return tuple(value.shape) if isinstance(value, torch.Tensor) else value


def _agrees(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if not expected.is_floating_point():
        return bool((found == expected).all())
    tolerance = 1e-3 if expected.dtype in (torch.float32, torch.float64) else 3e-2
    scale = float(expected.abs().nan_to_num().max()) if expected.numel() else 0.0
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _as_exact(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    differing: Sequence[tuple[int, torch.Tensor, torch.Tensor]],
) -> bool:
    """Say whether results are as near as torch's to those of double precision.

    Sums that cancel, as a bias's gradient in front of a normalisation, are rounding alone in both.
    """
    try:
        exact = _in_double(graph)(*map(_double, inputs))
    except Exception:  # it does not take double precision
        logger.debug("a graph does not run in double precision", exc_info=True)
        return False
    return all(
        found.dtype == expected.dtype == torch.float32
        and found.shape == expected.shape
        and float((found - exact[at]).abs().max())
        <= _MAX_MORE_ROUNDING * float((expected - exact[at]).abs().max())
        for at, found, expected in differing
    )


def _in_double(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a copy that makes tensors of double precision where the graph makes single ones."""
    module = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    for node in module.graph.nodes:
        node.args, node.kwargs = torch.fx.node.map_aggregate(
            (node.args, node.kwargs), lambda each: torch.float64 if each is torch.float32 else each
        )
    module.recompile()
    return module


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype is torch.float32 else value


def _seconds(duration: str | float) -> float:
    """Return seconds from a number of them, or a text such as `2min`."""
    if isinstance(duration, int | float):
        return float(duration)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", duration)
    if found is None or found[2] not in _UNITS_S:
        raise ValueError(f"tune is {duration!r}; give a duration such as '2min', '90s' or 120")
    return float(found[1]) * _UNITS_S[found[2]]


def _sentence(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]

"""Programs: what a user declares, and the graph that comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tempo import autodiff, dtypes
from tempo.copying import OneOfAKind
from tempo.declared import Dim, ProgramBound, State, check_name, check_text
from tempo.dtypes import DTypeLike
from tempo.errors import DomainError, DtypeError, ProgramError, ShapeError
from tempo.graph.node import (
    Case,
    Domain,
    Edge,
    Graph,
    Node,
    Shape,
    dims_of,
    normal_size,
    shape_symbols,
    show_domain,
    show_shape,
)
from tempo.graph.structural import INPUT
from tempo.graph.traversal import reachable
from tempo.source import SourceLine, user_line
from tempo.symbolic import TRUE, Bound, Expr, Symbol, constant
from tempo.symbolic import Dim as SymbolicDim
from tempo.temporal import add_case, recurrent_node
from tempo.tensor import (
    RecurrentTensor,
    ShapeLike,
    TensorLike,
    as_tensor,
    being_written,
)

if TYPE_CHECKING:
    import os

    from tempo.given import Result
    from tempo.runtime.executable import Executable
    from tempo.schedule.plan import Plan

DomainLike = SymbolicDim | Sequence[SymbolicDim]
Initialiser = Callable[[Shape, dtypes.DType], RecurrentTensor]

TensorT = TypeVar("TensorT", bound=RecurrentTensor)


class Program(OneOfAKind):
    """A set of definitions: what each tensor is at each time step.

    >>> import tempo as tp
    >>> with tp.Program("ema") as prog:
    ...     t, T = prog.dim("t")
    ...     x = prog.input("x", shape=(), domain=(t,))
    ...     y = prog.recurrent("y", shape=(), domain=(t,))
    ...     y[0] = x[0]
    ...     y[t] = 0.5 * y[t - 1] + 0.5 * x[t]
    ...     prog.output("y", y)
    >>> prog.evaluate({T: 3}, x=[8.0, 4.0, 2.0]).y
    array([8., 6., 4.], dtype=float32)
    """

    def __init__(self, name: str = "program") -> None:
        check_text(name, "program")
        self.name = name
        self.cases: dict[Node, list[Case]] = {}
        self.gradients: list[autodiff.Request] = []
        self.hosts: list[Node] = []
        self._dims: list[Dim] = []
        self._symbols: dict[str, SourceLine] = {}
        self._tensors: dict[str, RecurrentTensor] = {}
        self._outputs: dict[str, tuple[RecurrentTensor, SourceLine]] = {}
        self._emits: dict[str, tuple[RecurrentTensor, SourceLine]] = {}
        self._stops: dict[SymbolicDim, tuple[RecurrentTensor, SourceLine]] = {}
        self._params: dict[str, RecurrentTensor] = {}
        self._inputs: dict[str, Node] = {}
        self._training_over: Domain | None = None
        self._random_streams = 0
        self._internal_dims = 0
        self._seed: RecurrentTensor | None = None
        self._graph: Graph | None = None
        self._checked: Any = None

    # -- being written ----------------------------------------------------------------------------

    def __enter__(self) -> Program:
        being_written.programs.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        being_written.programs.remove(self)

    def changed(self) -> None:
        """Forget the graph that was made of the program so far."""
        self._graph = None

    @property
    def seed(self) -> RecurrentTensor:
        """The seed of the run, as the two words that key the random generator."""
        if self._seed is None:
            node = self._input("seed", "seed", (2,), (), dtypes.uint32)
            self._seed = RecurrentTensor(self, node.here())
        return self._seed

    def next_random_stream(self) -> int:
        """The number that keys the next random operation's draws."""
        self._random_streams += 1
        return self._random_streams - 1

    # -- declarations -------------------------------------------------------------------------------

    def dim(self, name: str, bound: str | None = None) -> tuple[Dim, Bound]:
        """A temporal dimension and its bound: ``t, T = prog.dim("t")``.

        The bound is named like the dim in upper case unless ``bound`` names it.
        """
        here = user_line()
        check_name(name, "dim")
        bound = bound or (name.upper() if name.upper() != name else f"{name}_bound")
        check_text(bound, "bound")
        for symbol in (name, bound):
            if symbol in self._symbols:
                raise ProgramError(
                    f"program '{self.name}' already has a dim or bound named '{symbol}'",
                    places=[("here", here), ("first", self._symbols[symbol])],
                    hint='dims and bounds need different names; prog.dim("t", bound="Steps") names the bound',
                )
            self._symbols[symbol] = here
        size = ProgramBound(self, bound)
        self._dims.append(Dim(self, name, size))
        return self._dims[-1], size

    def internal_dim(
        self, like: SymbolicDim, bound: Expr, origin: SymbolicDim | None = None, start: Expr | int = 0
    ) -> Dim:
        """A dim that no user named, for what is derived from a program."""
        self._internal_dims += 1
        return Dim(self, f"{like.name}'{self._internal_dims}", bound, origin, start)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dims, in the order in which they were declared."""
        return tuple(self._dims)

    def input(
        self,
        name: str,
        shape: ShapeLike = (),
        domain: DomainLike = (),
        dtype: DTypeLike = "float32",
    ) -> RecurrentTensor:
        """Data given when the program runs: an array with one leading axis per dim of ``domain``."""
        self._check_free(name, "input")
        shape_ = self._shape(name, shape, (), "input")
        node = self._input(name, name, shape_, self.as_domain(domain), dtypes.as_dtype(dtype))
        return self._declare(name, RecurrentTensor(self, node.here()))

    def _input(self, name: str, label: str, shape: Shape, domain: Domain, dtype: dtypes.DType) -> Node:
        node = Node(INPUT, (), domain, shape, dtype, user_line(), {"input": name}, name=label)
        self._inputs[name] = node
        return node

    def recurrent(
        self,
        name: str,
        shape: ShapeLike = (),
        domain: DomainLike = (),
        dtype: DTypeLike = "float32",
    ) -> RecurrentTensor:
        """A tensor defined by cases: ``y[0] = ...``, ``y[t] = ... y[t - 1] ...``."""
        self._check_free(name, "recurrent tensor")
        domain = self.as_domain(domain)
        shape_ = self._shape(name, shape, domain, "recurrent tensor")
        node = recurrent_node(name, domain, shape_, dtypes.as_dtype(dtype), user_line())
        self.cases[node] = []
        return self._declare(name, RecurrentTensor(self, node.here()))

    def state(self, name: str, init: TensorLike, over: DomainLike, domain: DomainLike = ()) -> State:
        """A tensor that is ``init`` at the first point and ``.next`` of the point before everywhere else.

        Points follow each other in lexicographic order over the dims of ``over``. Over the dims of ``domain`` and
        those of ``init`` there are parallel copies, one per step.
        """
        here = user_line()
        self._check_free(name, "state")
        over = self.as_domain(over)
        if not over:
            raise DomainError(
                f"state {name} needs at least one dim to go over",
                places=[("here", here)],
                hint='say which: prog.state("w", init, over=(i,))',
            )
        initial = as_tensor(init, self)
        if set(initial.domain) & set(over):
            raise DomainError(
                f"the initial value of state {name} varies over {show_domain(initial.domain)}, "
                f"which the state itself goes over",
                places=[("here", here), (initial.name, initial.edge.node.source)],
                hint="index the initial value at one point, e.g. init[0]",
            )
        full = dims_of(frozenset(over) | frozenset(self.as_domain(domain)) | frozenset(initial.domain))
        node = recurrent_node(name, full, initial.shape, initial.dtype, here)
        self.cases[node] = []
        state = self._declare(name, State(self, node.here(), over))
        first = tuple(constant(0) if d in over else d for d in full)
        add_case(state, first, TRUE, initial, here)
        return state

    def param(
        self,
        name: str,
        shape: ShapeLike = (),
        dtype: DTypeLike = "float32",
        init: TensorLike | Initialiser | None = None,
    ) -> RecurrentTensor:
        """A parameter: a constant in inference, a state within ``prog.training(over=...)``.

        Its (initial) value is ``init``: a tensor, an array, or a function ``init(shape, dtype)`` that makes one;
        without ``init`` it is an input, given by name when the program runs.
        """
        self._check_free(name, "parameter")
        shape_ = self._shape(name, shape, (), "parameter")
        dtype = dtypes.as_dtype(dtype)
        if init is None:
            label = name if self._training_over is None else f"{name}.init"
            value = RecurrentTensor(self, self._input(name, label, shape_, (), dtype).here())
        else:
            value = as_tensor(init(shape_, dtype) if callable(init) else init, self, dtype)
            if value.shape != shape_:
                raise ShapeError(
                    f"parameter {name} has shape {show_shape(shape_)}, its initial value {show_shape(value.shape)}",
                    places=[("here", user_line()), (value.name, value.edge.node.source)],
                    hint="initialisers are called as init(shape, dtype)",
                )
        if self._training_over is not None:
            value = self.state(name, value, self._training_over)
        else:
            self._declare(name, value)
        self._params[name] = value
        return value

    @property
    def params(self) -> Mapping[str, RecurrentTensor]:
        """The parameters by name, in the order of their declaration."""
        return dict(self._params)

    @contextmanager
    def training(self, over: DomainLike) -> Iterator[None]:
        """Parameters declared inside are states over these dims, to be given a ``.next``."""
        before, self._training_over = self._training_over, self.as_domain(over)
        try:
            yield
        finally:
            self._training_over = before

    # -- results -----------------------------------------------------------------------------------

    def output(self, name: str, tensor: TensorLike) -> None:
        """Name a result: an array with one leading axis per dim, over all points where it is defined."""
        value = self._result(name, tensor)
        if shape_symbols(value.shape) & set(value.domain):
            raise ShapeError(
                f"output '{name}' has shape {show_shape(value.shape)}, which differs from step to step",
                places=[("here", user_line()), (value.name, value.edge.node.source)],
                hint="reduce or pad the axis of varying size",
            )
        self._outputs[name] = (value, user_line())
        self.changed()

    def emit(self, name: str, tensor: TensorLike) -> None:
        """Name a value that is handed to the caller while the program runs, once per point."""
        self._emits[name] = (self._result(name, tensor), user_line())
        self.changed()

    def stop(self, dim: SymbolicDim, when: TensorLike) -> None:
        """End ``dim`` at the first step where ``when`` holds; that step is the last.

        The dim's bound then stands for the number of steps that were made, at most the number given for it.
        """
        here = user_line()
        (dim,) = self.as_domain((dim,))
        if isinstance(when, bool):
            raise DtypeError(
                f"the stop condition of {dim.name} is {when}, a plain bool",
                places=[("here", here)],
                hint=f"{dim.name} == 5 compares expressions as Python objects: write tp.equal({dim.name}, 5)",
            )
        condition = as_tensor(when, self)
        if dim in self._stops:
            raise ProgramError(
                f"dim {dim.name} already has a stop condition",
                places=[("here", here), ("first", self._stops[dim][1])],
                hint="combine conditions with |",
            )
        if condition.shape != () or not dtypes.is_bool(condition.dtype):
            raise DtypeError(
                f"the stop condition of {dim.name} must be one bool per step, "
                f"found shape {show_shape(condition.shape)}, {condition.dtype.name}",
                places=[("here", here), (condition.name, condition.edge.node.source)],
                hint="reduce it with tp.all(...) or tp.any(...)"
                if dtypes.is_bool(condition.dtype)
                else "compare it with something, e.g. token[t] == end",
            )
        if condition.domain != (dim,):
            raise DomainError(
                f"the stop condition of {dim.name} must vary over {dim.name} alone, "
                f"found the domain {show_domain(condition.domain)}",
                places=[("here", here), (condition.name, condition.edge.node.source)],
                hint="to stop when all of a batch are done: tp.all(done[0:B]) over the batch dim"
                if condition.domain
                else f"a condition that is the same at every step does not say when to stop {dim.name}",
            )
        self._stops[dim] = (condition, here)
        self.changed()

    # -- use ---------------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The symbolic dependence graph of the program, gradients written out."""
        if self._graph is None:
            self._graph = self._build()
        return self._graph

    def evaluate(self, /, bounds: Mapping[Any, int] | None = None, seed: int = 0, **inputs: Any) -> Result:
        """Run the program on the reference interpreter: exact, slow, for small bounds.

        ``bounds`` gives a number for every bound, ``inputs`` an array for every input; the result has the
        outputs as attributes and the emitted records in ``.emits``.
        """
        from tempo.reference import evaluate

        self.check(bounds or {})
        return evaluate(self.graph, bounds or {}, inputs, seed)

    def compile(
        self,
        bounds: Mapping[Any, int] | None = None,
        backend: str = "jax",
        device: str | None = None,
        seed: int = 0,
        plan: Plan | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        memory: int | str | None = None,
    ) -> Executable:
        """Compile the program for given bounds: ``run = prog.compile({T: 1000}); run(x=samples).y``.

        ``backend`` is ``"jax"`` (one XLA program, on ``device``: "cpu", "gpu" or whatever is there) or ``"numpy"`` (the
        same loops in Python, slow, for checking).

        ``memory``, bytes or a text like "8GiB", is what the program may take on its device: inputs, outputs and
        everything between. Values that do not fit are kept in host memory.
        ``plan`` is "fastest", "smallest", or decisions: a ``tp.Plan``, a dict of them, or the path of a saved one.
        """
        from tempo.runtime.executable import Executable

        return Executable(self.graph, bounds or {}, backend, device, seed, plan=plan, memory=memory)

    def check(self, bounds: Mapping[Any, int]) -> None:
        """Prove that every needed value is defined, in range and does not depend on itself, or say what is not."""
        from tempo.analysis import check_program
        from tempo.given import check_bounds

        numbers = check_bounds(self.graph, bounds)
        key = (self.graph, tuple(sorted((str(b), n) for b, n in numbers.items())))
        if self._checked != key:
            check_program(self.graph, bounds)
            self._checked = key

    def __repr__(self) -> str:
        dims = ", ".join(d.name for d in self._dims)
        return f"<Program '{self.name}' over ({dims}), outputs: {', '.join(self._outputs) or 'none'}>"

    def _named(self) -> str:
        return f"program '{self.name}'"

    # -- inside ------------------------------------------------------------------------------------

    def _build(self) -> Graph:
        if not (self._outputs or self._emits or self.hosts):
            raise ProgramError(
                f"program '{self.name}' has no outputs, so there is nothing to compute",
                hint='name a result: prog.output("y", y)',
            )
        outputs = {name: tensor.edge for name, (tensor, _) in self._outputs.items()}
        emits = {name: tensor.edge for name, (tensor, _) in self._emits.items()}
        return self._graph_of(outputs, emits, self.hosts)

    def graph_of(self, tensor: RecurrentTensor) -> Graph:
        """The part of the program that one tensor needs."""
        return self._graph_of({tensor.name: tensor.edge}, {}, ())

    def _graph_of(self, outputs: Mapping[str, Edge], emits: Mapping[str, Edge], hosts: Sequence[Node]) -> Graph:
        cases = autodiff.expand(self)
        stops = {dim: tensor.edge for dim, (tensor, _) in self._stops.items()}
        roots = [edge.node for edge in (*outputs.values(), *emits.values(), *stops.values())]
        nodes = reachable([*roots, *hosts], cases)
        for node in nodes:
            self._check_defined(node, cases)
        dims = dims_of(frozenset(d for node in nodes for d in node.domain) | frozenset(self._dims))
        kept = {node: tuple(cases[node]) for node in nodes if node in cases}
        return Graph(self.name, dims, nodes, kept, outputs, emits, stops, dict(self._inputs))

    def _check_defined(self, node: Node, cases: Mapping[Node, Sequence[Case]]) -> None:
        state = self._tensors.get(node.name)
        if node in cases and not cases[node]:
            raise ProgramError(
                f"{node.label} is used but nothing defines it",
                places=[(node.label, node.source)],
                hint=f"define it: {node.label}[{', '.join(d.name for d in node.domain) or '...'}] = ...",
            )
        if isinstance(state, State) and state.edge.node is node and state._next is None:
            raise ProgramError(
                f"state {node.label} has an initial value but no next one",
                places=[(node.label, node.source)],
                hint=f"say what it becomes: {node.label}.next = ... ({node.label}.next = {node.label} keeps it)",
            )

    def check_symbols(self, symbols: Iterable[Symbol]) -> None:
        """Reject dims and bounds of other programs."""
        for symbol in symbols:
            owner = getattr(symbol, "program", None)
            if owner is not self:
                kind = "dim" if isinstance(symbol, SymbolicDim) else "bound"
                whose = f"program '{owner.name}', not to '{self.name}'" if owner else "no program"
                known = symbol.name in self._symbols
                raise ProgramError(
                    f"{kind} {symbol.name} belongs to {whose}",
                    places=[("here", user_line()), (f"{symbol.name} of '{self.name}'", self._symbols.get(symbol.name))],
                    hint=f"use the {symbol.name} of '{self.name}'" if known else 'declare dims with prog.dim("name")',
                )

    def _check_free(self, name: str, what: str) -> None:
        """Whether a tensor may have a name: asked before anything is noted of it, so that a mistake leaves nothing."""
        check_name(name, what)
        if name in self._tensors:
            raise ProgramError(
                f"program '{self.name}' already has a tensor named '{name}'",
                places=[("here", user_line()), ("first", self._tensors[name].edge.node.source)],
                hint="give every input, parameter, state and recurrent tensor its own name",
            )

    def _declare(self, name: str, tensor: TensorT) -> TensorT:
        self._tensors[name] = tensor
        return tensor

    def _result(self, name: str, tensor: TensorLike) -> RecurrentTensor:
        check_name(name, "result", reserved=("outputs", "emits"))
        earlier = self._outputs.get(name) or self._emits.get(name)
        if earlier is not None:
            raise ProgramError(
                f"program '{self.name}' already has a result named '{name}'",
                places=[("here", user_line()), ("first", earlier[1])],
                hint="outputs and emits need different names",
            )
        return as_tensor(tensor, self)

    def as_domain(self, domain: DomainLike) -> Domain:
        """A domain from a dim or several, checked to be this program's and in order."""
        dims = tuple(domain) if isinstance(domain, Iterable) else (domain,)
        for d in dims:
            if not isinstance(d, SymbolicDim):
                kind = "a bound" if isinstance(d, Bound) else f"of type {type(d).__name__}"
                raise DomainError(
                    f"expected a dim, found {d!r}, which is {kind}",
                    places=[("here", user_line())],
                    hint='t, T = prog.dim("t") gives the dim t and its bound T',
                )
        self.check_symbols(dims)
        ordered = dims_of(frozenset(dims))
        if len(ordered) < len(dims):
            raise DomainError(
                f"the domain {show_domain(dims)} has a dim twice",
                places=[("here", user_line())],
                hint="for two independent steps declare two dims",
            )
        if ordered != dims:
            raise DomainError(
                f"the domain {show_domain(dims)} is not in the order in which the dims were declared",
                places=[("here", user_line())],
                hint=f"write {show_domain(ordered)}: indices x[...] follow that order everywhere",
            )
        return dims

    def _shape(self, name: str, shape: ShapeLike, domain: Domain, what: str) -> Shape:
        sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        for size in sizes:
            if not isinstance(size, int | np.integer | Expr) or isinstance(size, bool):
                problem = f"{size!r} is not a size"
            elif not isinstance(size, Expr) and size < 0:
                problem = f"the size {size} is negative"
            elif isinstance(size, Expr) and set(dims_of(size.symbols())) - set(domain):
                problem = f"the size {size} varies over dims that are not in its domain"
            else:
                continue
            raise ShapeError(
                f"the shape of {what} {name}: {problem}",
                places=[("here", user_line())],
                hint="sizes are non-negative integers or expressions of bounds"
                + (" and the domain's dims" if domain else ""),
            )
        self.check_symbols(shape_symbols(sizes))
        return tuple(normal_size(size) for size in sizes)

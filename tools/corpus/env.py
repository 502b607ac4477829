"""What a program is given: it makes its buffers, captures and replays through an `Env`, and hands over its results.

The same program runs plain, eagerly and watched; the `Env` is what differs. One thread, one program at a time.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from corpus.images import Kept, kept_of

if TYPE_CHECKING:
    from corpus.counting import Counting
    from corpus.planting import Plant

REPLAYS = 3
Program = Callable[["Env"], None]


class NotCapturable(Exception):
    """The program cannot be captured without shadowgraph."""


class ProbeDone(Exception):
    """The body ran once without waiting for the device."""


class Skip(Exception):
    """The program cannot be made here."""


def seed_all(seed: int) -> None:
    """Seed every generator that programs draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 31))


def first_line(error: BaseException) -> str:
    """An error's message, cut short."""
    return (str(error).strip().splitlines() or [""])[0][:300]


class EagerGraph:
    """In place of a graph where a program runs eagerly."""

    def __init__(self, body: Callable[[], Any]) -> None:
        self.body, self.out = body, None

    def replay(self) -> None:
        self.out = self.body()


class Captured:
    """A captured graph and what its body returned."""

    def __init__(self, env: Env, graph: Any, out: Any) -> None:
        self.env, self.graph, self._out = env, graph, out

    @property
    def out(self) -> Any:
        return self.graph.out if isinstance(self.graph, EagerGraph) else self._out

    def forget_outputs(self) -> None:
        """Drop the outputs, as a program does that keeps the graph alone."""
        self._out = None

    def replay(self, seed: int | None = None) -> Any:
        """Replay (seeded where asked), wait, and return the outputs."""
        env = self.env
        if env.plant is not None:
            env.plant.before_replay(env, self)
        if seed is not None:
            torch.manual_seed(seed)
        with env.timed("replay"):
            self.graph.replay()
            env.wait()
        env.replayed += 1
        return self.out


class Env:
    """One run of one program.

    Attributes
    ----------
    kind
        ``plain``, ``probe`` (CUDA: the body once, failing where it waits for the device), ``eager`` or ``watched``.
    guarding
        Whether static buffers are made in ``guard()`` and refreshed in ``prepare()``.
    kept
        What must be bit-identical, in order.
    undefined
        Outputs hold uninitialised memory by definition: they are not compared.
    plant, counting
        A write to be planted, and what is read off the debugger at the end of the program.
    """

    def __init__(self, backend: str, kind: str, debugger: Any = None, guarding: bool = False) -> None:
        self.backend, self.kind, self.debugger, self.guarding = backend, kind, debugger, guarding
        self.cuda = backend == "cuda"
        self.device = "cuda" if self.cuda else "cpu"
        self.clock = time.perf_counter if self.cuda else time.process_time  # the host may be busy with other work
        self.kept: list[Kept] = []
        self.times: dict[str, float] = {}
        self.replayed = 0
        self.graphs: list[Any] = []
        self.undefined = False
        self.plant: Plant | None = None
        self.counting: Counting | None = None

    @property
    def graph_time(self) -> float:
        """Seconds of warming up, capturing and replaying."""
        return sum(self.times.get(name, 0.0) for name in ("warm", "capture", "replay"))

    @contextlib.contextmanager
    def timed(self, what: str) -> Any:
        """Add the time inside to `times`."""
        began = self.clock()
        yield
        self.times[what] = self.times.get(what, 0.0) + self.clock() - began

    def wait(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize()

    # -- making --------------------------------------------------------------------------------------------------------

    def guarded(self) -> AbstractContextManager[Any]:
        """``guard()`` in variants that guard."""
        return self.debugger.guard() if self.debugger is not None and self.guarding else contextlib.nullcontext()

    def static(self, value: torch.Tensor) -> torch.Tensor:
        """A static buffer with these values (of the same strides where dense), guarded in guarding variants."""
        value = value.detach()
        with self.guarded(), torch.no_grad():
            made = value.clone() if value.device.type == self.device else value.to(self.device, copy=True)
        if self.plant is not None:
            self.plant.made(made)
        return made

    def name(self, name: str, owner: Any) -> None:
        """Tell the debugger what something is called."""
        if self.plant is not None:
            self.plant.named(owner)
        if self.debugger is not None:
            with contextlib.suppress(Exception):
                self.debugger.name(name, owner)

    def prepare(self, graph: Any = None) -> AbstractContextManager[Any]:
        """``prepare(graph)`` in variants that guard."""
        if self.debugger is None or not self.guarding or self.kind == "eager":
            return contextlib.nullcontext()
        prepared: AbstractContextManager[Any] = self.debugger.prepare(
            graph.graph if isinstance(graph, Captured) else graph
        )
        return prepared

    # -- capturing -----------------------------------------------------------------------------------------------------

    def warm(self, body: Callable[[], Any], times: int = 2) -> None:
        """Run a body before its capture, on a side stream where there is a device."""
        with self.timed("warm"), self._side_stream():
            for _ in range(times):
                body()

    @contextlib.contextmanager
    def _side_stream(self) -> Any:
        if not self.cuda:
            yield
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            yield
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    def new_graph(self) -> Any:
        """An empty graph of the backend's."""
        if self.cuda:
            return torch.cuda.CUDAGraph()
        import shadowgraph as sg

        return sg.HostGraph()

    def graph_context(self, graph: Any, pool: Any = None) -> Any:
        """The ``with`` block that captures."""
        if self.cuda:
            return torch.cuda.graph(graph, pool=pool)
        import shadowgraph as sg

        return sg.host_graph(graph, pool=pool)

    def pool(self) -> Any:
        """A pool for several captures."""
        if self.kind == "eager":
            return None
        if self.cuda:
            return torch.cuda.graph_pool_handle()
        import shadowgraph as sg

        return sg.graph_pool_handle()

    def capture(self, body: Callable[[], Any], pool: Any = None, graph: Any = None) -> Captured:
        """Capture a body."""
        if self.kind == "eager":
            self.graphs.append(EagerGraph(body))
            return Captured(self, self.graphs[-1], None)
        if self.kind == "probe":
            self._probe(body)
        graph = graph if graph is not None else self.new_graph()
        if self.plant is not None:
            self.plant.before_capture(self)
        with self.timed("capture"):
            try:
                with self.graph_context(graph, pool):
                    out = body()
                    if self.plant is not None:
                        self.plant.in_capture(self, graph, out)
            except Exception as error:
                if self.kind == "plain":
                    raise NotCapturable(f"{type(error).__name__}: {first_line(error)}") from error
                raise
            self.wait()
        self.graphs.append(graph)
        return Captured(self, graph, out)

    def _probe(self, body: Callable[[], Any]) -> None:
        """Run what would be captured: a capture that fails may leave a CUDA process unusable."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                torch.cuda.set_sync_debug_mode("error")
                body()
        except (RuntimeError, NotImplementedError) as error:
            raise NotCapturable(f"{type(error).__name__}: {first_line(error)}") from error
        finally:
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
        raise ProbeDone

    # -- results -------------------------------------------------------------------------------------------------------

    def keep(self, label: str, values: Any) -> None:
        """What must be bit-identical: read now, as a program reads its results."""
        if self.plant is not None:
            self.plant.before_results(self)
        self._keep(label, values, False)

    def note(self, label: str, values: Any) -> None:
        """As `keep`, of what a program would not read: the debugger does not see it."""
        with torch._C._DisableTorchDispatch():
            self._keep(label, values, True)

    def _keep(self, label: str, values: Any, quietly: bool) -> None:
        for at, each in enumerate(tree_flatten(values)[0]):
            kept = kept_of(f"{label}[{at}]", each, quietly)
            if kept is not None:
                self.kept.append(kept)
        if self.counting is not None:
            self.counting.kept(self)

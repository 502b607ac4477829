"""Hooks on `torch.cuda.CUDAGraph`: captures, replays, resets and ends of graphs, seen by patching the class's methods.

The patched methods run in the program's threads and emit the events of `graphs.events` there; no lock is held. A graph
that is garbage collected is reported through `defer`, outside the collector and outside locks.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch

from shadowgraph.common.compat import relaxed_capture
from shadowgraph.common.finalizer_safe_lock import defer, run_deferred
from shadowgraph.common.internal_errors import error_barrier, error_barrier_all
from shadowgraph.common.patching import PatchSet
from shadowgraph.engines.context import primary_context
from shadowgraph.graphs.cuda import capture as cuda_capture
from shadowgraph.graphs.cuda.allocator_history import History, PoolHandle, is_complete, snapshot_of
from shadowgraph.graphs.cuda.capture import Capture
from shadowgraph.graphs.cuda.capture_lines import CaptureLines
from shadowgraph.graphs.cuda.check_nodes import CheckNodes
from shadowgraph.graphs.cuda.device_model import read_later
from shadowgraph.graphs.cuda.driver import driver, raw_graph
from shadowgraph.graphs.cuda.host_copies import host_copies
from shadowgraph.graphs.cuda.in_place_pools import INCOMPLETE, UNMAPPABLE, InPlacePools, segments_of
from shadowgraph.graphs.cuda.isolated_pools import IsolatedPool, IsolatedPools
from shadowgraph.graphs.cuda.node_attribution import Marks
from shadowgraph.graphs.cuda.pool_buffers import Made, Tenants, enter_pool_buffers, tenants_of
from shadowgraph.graphs.cuda.probes import Prober
from shadowgraph.graphs.events import events, listeners
from shadowgraph.model.graphs import Graph
from shadowgraph.model.probes import Outcome
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.reruns import Experiment
from shadowgraph.tracking import launch_recording, passing, steps
from shadowgraph.tracking.captures import RunningCapture, captures
from shadowgraph.tracking.cuda_allocator import CudaAllocator
from shadowgraph.tracking.pool_watch import borrowers, watch

_serials, _sessions = itertools.count(1), itertools.count(1)
_patches = PatchSet(optional=("__del__",))
_history = History()


@dataclass(slots=True)
class _State:
    """The state of one CUDAGraph object; stored on the object."""

    model: Graph
    mode: Capture | None = None
    pool: IsolatedPool | None = None
    native: bool = False  # whether guards may stand in the program's own pool
    session: int = 0  # the debugger under which it was captured or has replayed
    history: bool = False  # whether this capture switched the allocator's history on
    finalizer: Any = field(default=None, repr=False)
    since: int = 0  # the ledger's serial when its capture began


@dataclass(slots=True)
class _Open:
    """A running capture, stored on its CUDAGraph object."""

    running: RunningCapture
    finalizer: Any = field(repr=False)  # for a graph that dies without `capture_end`


LENT = "the program holds its executable form"
_ELSEWHERE = _State(Graph(0, "a graph of another device"))


class CudaGraphs:
    """Hooks on every `torch.cuda.CUDAGraph` of the process between `install` and `uninstall`.

    Parameters
    ----------
    pools
        Guarded pools that replace private ones (layout ``isolate``), or None.
    native
        Guards for the program's own pools.
    expandable
        Whether expandable segments are on, so that no pool has guards.
    prober
        Runs the replays for which a probe is set.
    lines
        Chooses how each capture is noted.
    checks
        Adds check nodes to captured graphs; None where replays are checked by launches.
    """

    def __init__(
        self,
        allocator: CudaAllocator,
        pools: IsolatedPools | None,
        native: InPlacePools,
        expandable: bool,
        prober: Prober,
        lines: CaptureLines,
        checks: CheckNodes | None = None,
    ) -> None:
        self._allocator, self._pools, self._native, self._expandable = allocator, pools, native, expandable
        self._prober, self._lines, self._checks = prober, lines, checks
        self._live: set[int] = set()  # serials of live captures
        self._session = 0  # debuggers so far

    def install(self) -> None:
        """Patch the class; undone by `uninstall`."""
        if self._checks is not None:
            with error_barrier_all("counts of replays"):
                self._checks.begin(self._allocator.wait)
        self._session = next(_sessions)
        wraps: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
            "__init__": _wrap_init,
            "capture_begin": self._wrap_begin,
            "capture_end": self._wrap_end,
            "replay": self._wrap_replay,
            "reset": self._wrap_reset,
            "__del__": _wrap_del,
            "pool": self._wrap_pool,
            "raw_cuda_graph_exec": self._wrap_exec,
        }
        _patches.install([(torch.cuda.CUDAGraph, name, wrap) for name, wrap in wraps.items()])

    def uninstall(self) -> None:
        """Restore the methods, and remove the guards in the program's own pools. Captures that run are recorded no
        more: their end would not be seen."""
        _patches.uninstall()
        cuda_capture.end_recordings()
        self._native.close()

    def _wrap_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_begin(graph: Any, pool: Any = None, *args: Any, **kwargs: Any) -> None:
            state: _State | None = None
            if torch.cuda.current_device() != self._allocator.index:
                self._native.left_alone["a device that is not watched"] += 1
                state = _ELSEWHERE
            else:
                with error_barrier("capture_begin"):
                    state = self._begin(pool)
            inside = state.pool.pool.id if state is not None and state.pool is not None else pool
            running = captures.begin()
            try:
                original(graph, inside, *args, **kwargs)
            except BaseException:
                running.end()
                if state is not None and state is not _ELSEWHERE:  # refused: the graph keeps its former capture
                    self._drop(state)
                raise
            with error_barrier_all("capture_begin"):
                self._began(graph, state, running)

        return capture_begin

    def _begin(self, pool: Any) -> _State:
        serial = next(_serials)
        state = _State(Graph(serial, f"graph#{serial}"), session=self._session)
        began = self._allocator.ledger.next_serial()
        state.model.began = began
        events.capture_began(state.model)
        try:
            self._allocator.settle()
            if not _inductor_captures():
                state.pool = self._pools.stand_in(pool) if self._pools is not None else None
                state.native = state.pool is None and self._native.may_guard(pool, self._expandable)
                state.history = (state.pool is not None or state.native) and _history.begin()
        except BaseException:
            events.graph_reset(state.model)
            raise
        return state

    def _began(self, graph: Any, state: _State | None, running: RunningCapture) -> None:
        finalizer = weakref.finalize(graph, running.end)
        finalizer.atexit = False
        graph._shadowgraph_open = _Open(running, finalizer)
        self._forget(graph)
        graph._shadowgraph = state
        if state is None or state is _ELSEWHERE:
            return
        self._live.add(state.model.serial)
        state.since = self._allocator.ledger.next_serial()
        # Without the state: finalizers live until the interpreter has ended, and a pool must not.
        state.finalizer = weakref.finalize(graph, self._ended, state.model)
        state.finalizer.atexit = False
        marks: Marks | None = None
        with error_barrier_all("attribution"):
            marks = Marks(driver(), self._allocator.index)
        state.mode = self._lines.begin(state.model, self._allocator.ledger, state.pool is not None, marks)
        cuda_capture.enter(state.mode)

    def _drop(self, state: _State) -> None:
        """A capture has failed or is dropped."""
        with error_barrier("capture"):
            if state.mode is not None:
                mode, state.mode = state.mode, None
                try:
                    cuda_capture.leave(mode)
                finally:
                    mode.drop()
            if state.history:
                state.history = False
                _history.end()
            if state.finalizer is not None:
                state.finalizer.detach()
            if state.pool is not None:
                for tenants in state.pool.tenancies.values():
                    tenants.pop(state.model.serial, None)
        self._gone(state.model)

    def _ended(self, model: Graph) -> None:
        """A graph is being destroyed, maybe by the garbage collector, in the middle of anything: its pool may be gone
        before its guards are withdrawn."""
        with error_barrier_all("end of a graph that captured"):
            cuda_capture.abandon(model)
        if self._checks is None:
            defer(partial(self._gone, model))
            return
        with error_barrier_all("end of a graph"):
            self._checks.halt()
        defer(partial(self._gone_for_good, model))

    def _gone_for_good(self, model: Graph) -> None:
        try:
            self._gone(model)
        finally:
            assert self._checks is not None
            self._checks.go_on()

    def _gone(self, model: Graph) -> None:
        """A graph has ended; its pool may end with it."""
        self._live.discard(model.serial)
        watch.drop(model.serial)
        self._native.dropped(model)
        if self._checks is not None:
            self._checks.dropped(model)
        events.graph_reset(model)

    def _wrap_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_end(graph: Any) -> None:
            state: _State | None = getattr(graph, "_shadowgraph", None)
            mode: Capture | None = None
            if state is not None and state.mode is not None:
                mode, state.mode = state.mode, None
                with error_barrier("capture_end"):
                    cuda_capture.leave(mode)
            try:
                original(graph)
                model = state.model if state is not None and mode is not None else None
                if self._checks is not None and model is not None and _keeps(graph):
                    with error_barrier_all("check nodes"):
                        self._checks.add(graph, model)
                if _keeps_for_us(graph) and not getattr(graph, "_has_graph_exec", False):
                    self._instantiate(graph, model)  # as torch does by itself where `keep_graph` is off
            except BaseException:
                self._forget(graph)
                if mode is not None:
                    with error_barrier_all("capture_end"):
                        mode.drop()
                raise
            finally:
                _close(graph)
                cuda_capture.settle()  # of a capture that another thread has reset
            if state is not None and mode is not None:
                with error_barrier("capture_end"):
                    self._end(graph, state, mode)

        return capture_end

    def _instantiate(self, graph: Any, model: Graph | None) -> None:
        if self._checks is not None:
            self._checks.instantiate(graph, model)
            return
        with relaxed_capture():
            torch._C._CUDAGraph.instantiate(graph)

    def _end(self, graph: Any, state: _State, mode: Capture) -> None:
        """Read the facts that are lost later; the rest is read on first use, so that the capture does not wait for
        it."""
        try:
            snapshot = snapshot_of(_pool_of(graph, state)) if state.pool is not None or state.native else None
            mode.finish()
            borrowers.redate(state.since, self._allocator.ledger.next_serial(), state.model.serial)
            if _keeps(graph):
                with error_barrier_all("copies of host memory"):
                    self._note_host_copies(graph, state.model)
                lines = self._lines.ended(graph, state.model, mode)
                read_later(graph, state.model, self._allocator.ledger, mode.origin, lines)
            else:
                state.model.unread = "it was made before shadowgraph was on"
            if snapshot is not None and state.pool is not None:
                self._end_guarded(state, state.pool, snapshot, mode.made)
            elif snapshot is not None:
                self._end_native(graph, state, snapshot, mode.made)
        finally:
            mode.drop()  # what is left of it after a fault
            if state.history:
                state.history = False
                _history.end()
            events.capture_ended(state.model)

    def _note_host_copies(self, graph: Any, model: Graph) -> None:
        """Read the copy nodes as the capture ends: before the first replay the host memory may be freed and reused."""
        model.host_copies = host_copies(driver(), raw_graph(graph), primary_context(self._allocator.index))
        model.ended = model.ended or self._allocator.ledger.next_serial()

    def _end_guarded(self, state: _State, pool: IsolatedPool, snapshot: Any, made: Made) -> None:
        tenants = tenants_of(snapshot, pool.segments.__contains__)
        if is_complete(tenants, made, pool.segments):
            watch.expect(state.model.serial, _ranges(tenants))
            self._allocator.guards.waiting.append(partial(self._enter, state, tenants, made))
        else:
            self._native.left_alone[INCOMPLETE] += 1

    def _end_native(self, graph: Any, state: _State, snapshot: Any, made: Made) -> None:
        handle = _pool_of(graph, state)
        within = RangeSet.of(segments_of(snapshot, handle))
        tenants = tenants_of(snapshot, within.__contains__)
        if self._allocator.may_be_unmapped(within):
            self._native.refuse(handle, UNMAPPABLE)
        elif is_complete(tenants, made, within):
            watch.expect(state.model.serial, _ranges(tenants))
            self._native.captured(handle, state.model, tenants, made)
        else:
            self._native.refuse(handle, INCOMPLETE)

    def _enter(self, state: _State, tenants: Tenants, made: Made) -> None:
        if state.pool is not None and state.model.serial in self._live:
            enter_pool_buffers(self._allocator, state.pool, state.model, tenants, made)

    def _wrap_replay(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def replay(graph: Any) -> None:
            state: _State | None = getattr(graph, "_shadowgraph", None)
            if not listeners or state is _ELSEWHERE:
                original(graph)
                return
            if state is None or state.session != self._session:
                state = graph._shadowgraph = self._known(graph, state)
            model = state.model
            model.replays += 1
            settled = True
            if steps.begins(model):
                self._switch(graph, model, steps.wants_checks(model))
                settled = steps.settled(model)
            if passing.on and settled and model.probe is None and model.checks_itself and not captures.running:
                run_deferred()  # guards of graphs that ended are withdrawn
                log = launch_recording.current
                if log is not None:
                    log.replay_passes(model.serial, model.replays)
                try:
                    original(graph)
                finally:
                    if passing.ended(model):
                        events.replays_passed(model)
                return
            self._observed(original, graph, model)

        return replay

    def _observed(self, original: Callable[..., Any], graph: Any, model: Graph) -> None:
        """A replay that does not pass."""
        events.replay_began(model)
        try:
            while model.experiments:
                self._experiment(graph, model, model.experiments.pop(0))
            if model.probe is None or torch.cuda.is_current_stream_capturing():
                original(graph)
            else:
                self._probed(original, graph, model)
        except BaseException:
            events.replay_failed(model)
            raise
        events.replay_ended(model)

    def _switch(self, graph: Any, model: Graph, on: bool, coming: int = 0) -> None:
        """Enable or disable the check nodes of a piece of a step for the replay that begins, or for a coming one."""
        if self._checks is not None:
            with error_barrier_all("check nodes of a piece"):
                self._checks.switch(graph, model, on, coming or model.replays, None if on else _not_probed(graph))

    def _wrap_exec(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def raw_cuda_graph_exec(graph: Any) -> Any:
            graph._shadowgraph_lent = True  # the program may change it, or keep the handle: it is no longer replaced
            state: _State | None = getattr(graph, "_shadowgraph", None)
            if state is not None and not steps.checks(state.model):  # it may replay without Python
                steps.refuse(state.model, LENT)
                self._switch(graph, state.model, True, state.model.replays + 1)
            return original(graph)

        return raw_cuda_graph_exec

    def _known(self, graph: Any, state: _State | None) -> _State:
        """The state of a graph that this debugger has not seen yet; one of its own where it was captured unseen."""
        adopted = state is not None
        if state is not None and self._checks is not None:
            with error_barrier_all("graph of an earlier debugger"):
                adopted = self._checks.adopt(graph, state.model)
        if state is not None and adopted:
            state.session = self._session
            return state
        serial = next(_serials)
        made = _State(Graph(serial, f"graph#{serial} (captured earlier)"), session=self._session)
        made.model.unread = "it was captured before shadowgraph was on"
        return made

    def _probed(self, original: Callable[..., Any], graph: Any, model: Graph) -> None:
        """Replay with a comparison after every node; a plain replay where the executable graph cannot be replaced."""
        probe, model.probe = model.probe, None
        assert probe is not None
        refused = _not_probed(graph)
        if refused is None:
            with model.reading:
                if not steps.checks(model):  # the probed executable graph, and the one after it, have all enabled
                    self._switch(graph, model, True)
                outcome = self._prober.run(graph, model.replays, probe, original)
        else:
            outcome = Outcome(model.replays, refused=refused)
            if _keeps(graph):
                with model.reading:
                    outcome = self._prober.search(graph, outcome, probe, lent=True)
            original(graph)
        with error_barrier("probed replay"):
            probe.deliver(outcome)

    def _experiment(self, graph: Any, model: Graph, experiment: Experiment) -> None:
        """Conduct an experiment that is to precede a replay."""
        refused: str | None = "it is captured into another graph"
        if not torch.cuda.is_current_stream_capturing():
            refused = "it was made before shadowgraph was on"
            if _keeps(graph):
                with model.reading:
                    if not steps.checks(model):  # runs in part disable all check nodes, and enable them afterwards
                        self._switch(graph, model, True)
                    refused = self._prober.conduct(graph, experiment, lent=_not_probed(graph) is not None)
        experiment.ended(refused)

    def _wrap_reset(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def reset(graph: Any) -> None:
            self._forget(graph)
            original(graph)
            _close(graph)

        return reset

    def _wrap_pool(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def pool(graph: Any) -> Any:
            handle = original(graph)
            return self._pools.handle_of(handle) if self._pools is not None else handle

        return pool

    def _forget(self, graph: Any) -> None:
        """Drop the graph's capture."""
        state: _State | None = getattr(graph, "_shadowgraph", None)
        if state is not None:
            with state.model.reading:  # waits for readers of its nodes, and keeps new ones out
                graph._shadowgraph = None
            if state is not _ELSEWHERE:
                self._drop(state)


def _ranges(tenants: Tenants) -> Iterator[ByteRange]:
    return (ByteRange(start, start + nbytes) for start, nbytes in tenants.items())


def _pool_of(graph: Any, state: _State) -> PoolHandle:
    """The pool that a graph was captured into, as the allocator knows it."""
    first, second = state.pool.pool.id if state.pool is not None else graph.pool()
    return int(first), int(second)


def _close(graph: Any) -> None:
    """End the record of a running capture, if there is one."""
    opened: _Open | None = getattr(graph, "_shadowgraph_open", None)
    if opened is not None:
        graph._shadowgraph_open = None
        opened.finalizer.detach()
        opened.running.end()


def _wrap_del(original: Callable[..., Any]) -> Callable[..., Any]:
    counted = captures  # globals of modules end before some graphs

    def __del__(graph: Any) -> None:
        """Destroy a graph that dies while any thread captures in the relaxed mode, so that the capture goes on; the
        graph's own destructor then finds it destroyed."""
        original(graph)
        if counted.running and getattr(graph, "_shadowgraph_open", None) is None:
            with error_barrier_all("end of a graph"), relaxed_capture():
                torch._C._CUDAGraph.reset(graph)

    return __del__


def _wrap_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(graph: Any, *args: Any, **kwargs: Any) -> None:
        asked = args[0] if args else kwargs.get("keep_graph", False)
        if not listeners or asked or len(args) + len(kwargs) > 1:
            original(graph, *args, **kwargs)
            graph._shadowgraph_keeps = "program" if asked else None
            return
        original(graph, True)  # ``keep_graph``: its nodes are read on request
        graph._shadowgraph_keeps = "us"

    return __init__


def _keeps(graph: Any) -> bool:
    """Whether the ``cudaGraph_t`` outlives the capture."""
    return getattr(graph, "_shadowgraph_keeps", None) is not None


def _not_probed(graph: Any) -> str | None:
    """Why the graph's nodes cannot be run one by one, or None."""
    if getattr(graph, "_shadowgraph_lent", False):
        return LENT
    if _keeps_for_us(graph):
        return None
    return "the program keeps the graph by itself" if _keeps(graph) else "it was made before shadowgraph was on"


def _keeps_for_us(graph: Any) -> bool:
    """Whether it does so at our request, so that the program does not instantiate it itself."""
    return getattr(graph, "_shadowgraph_keeps", None) == "us"


def _inductor_captures() -> bool:
    """Whether inductor's cudagraph trees are the caller: they do their own accounting of the pool."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(12):
        if frame is None:
            break
        if frame.f_code.co_filename.endswith("cudagraph_trees.py"):
            return True
        frame = frame.f_back
    return False

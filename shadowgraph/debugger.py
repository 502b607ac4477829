"""`Debugger`: the public object that starts, stops, configures and reads one debugger.

Methods run in the caller's thread; it has no lock of its own, its `Monitor` locks what events change.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

import torch

from shadowgraph.adapter_interface import AdapterInterface
from shadowgraph.common import finalizer_safe_lock, interrupts
from shadowgraph.common.errors import FindingsError, UnknownBufferError, UsageError
from shadowgraph.common.finalizer_safe_lock import weak_callback
from shadowgraph.common.html_repr import displayed, printed, register_namer
from shadowgraph.common.internal_errors import error_barrier, internal_errors
from shadowgraph.common.option_kinds import shown
from shadowgraph.common.settings import Settings
from shadowgraph.common.words import plural
from shadowgraph.declarations import Declarations, name_owner, watched_model
from shadowgraph.dumps.live import LiveDebugger
from shadowgraph.dumps.taking import take_dump
from shadowgraph.graphs import launch_rows
from shadowgraph.graphs.dispatch import eager, inference_guards, parameters, resize_hooks, tracing
from shadowgraph.graphs.dispatch.eager import leave_stopped_modes
from shadowgraph.graphs.dispatch.stepping_aside import begin_count
from shadowgraph.graphs.events import listeners
from shadowgraph.graphs.host.graph import HostGraph
from shadowgraph.graphs.lookup import model_of
from shadowgraph.graphs.observer.observer import observer
from shadowgraph.graphs.triton import host as triton_host
from shadowgraph.localize.location import Location
from shadowgraph.model.coverage import Coverage
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import GuardPolicy
from shadowgraph.model.listings import Buffers, Findings
from shadowgraph.model.phases import Phase
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.monitor.backends import backend_of
from shadowgraph.monitor.monitor import Monitor
from shadowgraph.monitor.recorder.recorder import recorder
from shadowgraph.monitor.run_facts import LiveNames, facts_of
from shadowgraph.render.text.text import Report
from shadowgraph.runner_interface import RunnerInterface
from shadowgraph.tracking import fence_hits, novelty, passing, steps
from shadowgraph.tracking.aliases import NameBook
from shadowgraph.tracking.pointer_tables import tables


class Debugger(Declarations, LiveDebugger):
    """Watches the graphs of this process between `start` and `stop`.

    Use `shadowgraph.debug` or `shadowgraph.install`, which create and start one. Findings stay readable after `stop`.
    A tensor passed to any method is not kept alive.

    Attributes
    ----------
    adapter
        For adapters of packages that the program uses: declare, bind, prepare, subscribe, join an exception.
    runner
        For code that runs a whole program under the debugger.

    Raises
    ------
    BackendError
        When the backend of the settings cannot work in this process.
    """

    def __init__(self, settings: Settings) -> None:
        if not isinstance(settings, Settings):
            raise UsageError(f"a Debugger takes Settings, not {shown(settings)}; use shadowgraph.debug() or install()")
        self.settings = settings
        self._backend = backend_of(settings)
        self._allocator = self._backend.allocator
        self._work = Monitor(settings, self._allocator, self._backend.engine)
        self.adapter, self.runner = AdapterInterface(self._work), RunnerInterface(self._work)
        self._policy = GuardPolicy(settings.near_guard, settings.far_guard, self._backend.guard_memory)
        if settings.variable_names:
            self._work.name_search.enable()
        self._live_names = register_namer(LiveNames(self._work.context))
        self._mode: eager.EagerMode | None = None
        self._mode_thread: int | None = None
        self._resizes = settings.guard_eager != "off" or settings.fence is not None or settings.watch_eager == "sampled"
        self._observes = settings.operators == "observer" or (
            settings.operators == "auto" and settings.backend == "cuda"
        )
        if self._observes:
            self._work.flight_recorder.observer = observer
        self._started = self._abandoned = False
        self._faults_before: dict[str, int] = {}
        self._stepped_aside: Mapping[str, int] = {}

    # -- life --------------------------------------------------------------------------------------------------

    def start(self, watch_thread: bool = True) -> None:
        """Start watching.

        Parameters
        ----------
        watch_thread
            Observe the calling thread's eager operators from here on; else the caller passes operators to `eager_mode`.

        Raises
        ------
        UsageError
            When another debugger is active in this process.
        """
        if any(isinstance(listener, Monitor) for listener in listeners):
            raise UsageError(
                "a debugger is active already: use that one, shadowgraph.current(), or end it: shadowgraph.uninstall()"
            )
        self._faults_before = internal_errors.counts
        self._stepped_aside = begin_count()
        interrupts.install()
        tracing.install()
        self._backend.start()
        self._allocator.policy = self._policy
        self._allocator.isolate_captures = self.settings.layout == "isolate"
        self._allocator.guards.last_check = self._work.retiring
        recorder.begin()
        passing.taken()  # replays recorded for an earlier debugger
        steps.start_over()
        self._work.rearm()  # guards broken before the start are not reported
        self._work.node_shadows.start_over()
        self._work.context.engine.pause(False)
        self._work.budget.start_over()  # counts of check nodes begin here
        listeners.append(self._work)
        novelty.current = self._work.novelty
        leave_stopped_modes()
        self._mode = eager.EagerMode(
            self._allocator,
            self._work.context.ledger.holds,
            self._work.eager_guard,
            self.settings.sync,
            # No reference back to the debugger: one in a reference cycle would be freed, with its device memory, by a
            # garbage collection at any time, even in the middle of a capture.
            partial(getattr, self._work.observation, "unobserved"),
            self._work.idleness,
            self._work.fencing,
        )
        self._mode.notes_operands = self.settings.undefined
        if self.settings.undefined and self.settings.backend == "host":
            triton_host.note_loads(True)
        if watch_thread:
            self._mode.home = threading.get_ident()
            self._mode.__enter__()  # type: ignore[no-untyped-call]
            self._mode_thread = threading.get_ident()
        if self.settings.guard_eager == "auto":
            parameters.install(self._allocator)
        fences = self._allocator.fences
        if self._work.fencing is not None and fences is not None and self.settings.backend == "host":
            fence_hits.current = fence_hits.FenceHits(fences, weak_callback(self._work.fences.met))
        if self._resizes:
            resize_hooks.install(self._allocator, weak_callback(self._work.observe_here))
        if self._observes:
            observer.start()
        self._started, self._abandoned = True, False
        finalizer_safe_lock.install()
        self._work.observation.begin()

    def stop(self) -> None:
        """Check once more and stop watching; removes every patch. Does nothing when not started.

        May be called from another thread than `start`: the starting thread's mode becomes inert at once, and leaves its
        stack when that thread next starts or stops a debugger.
        """
        if not self._started:
            return
        try:
            self._check_last()
        finally:
            self._started = False
            self._work.observation.end()
            with error_barrier("end of checks in graphs"):
                self._work.context.engine.pause(True)
                self._work.budget.stop()
            if self._observes:
                observer.stop()
            if self._mode is not None:
                self._mode.inert = True
            eager.follow(False)
            leave_stopped_modes()
            if not eager.rests:
                inference_guards.uninstall()
            listeners.remove(self._work)
            novelty.current = None
            launch_rows.log_operators(False)
            recorder.rest()
            self._allocator.policy = self._allocator.guards.last_check = None
            self._allocator.isolate_captures = False
            fence_hits.current = None
            tables.clear()
            if self.settings.guard_eager == "auto":
                parameters.uninstall()
            if self._resizes:
                resize_hooks.uninstall()
            if self.settings.undefined and self.settings.backend == "host":
                triton_host.note_loads(False)
            self._backend.stop()
            tracing.uninstall()
            finalizer_safe_lock.uninstall()
            interrupts.uninstall()

    def _check_last(self) -> None:
        try:
            self.check()
        finally:
            if self._mode_thread is not None:  # of the program: its variables may be gone when it asks for a map
                self._work.name_search.name_rest(self.buffers)

    def abandon(self) -> None:
        """Stop watching without a last check of memory and without removing patches, where memory must no longer be
        touched, as in a child forked from a process with a CUDA context."""
        if self._started:
            self._started, self._abandoned = False, True
            finalizer_safe_lock.uninstall()
            self._work.paused = True
            self._work.observation.end()
            if self._observes:
                observer.stop()
            if self._mode is not None:
                self._mode.inert = True
            listeners.remove(self._work)
            novelty.current = None
            launch_rows.log_operators(False)
            recorder.rest()
            self._allocator.policy = self._allocator.guards.last_check = None

    def pause(self) -> None:
        """Stop checking; captures and replays run as without a debugger. Changes made meanwhile are not checked.

        Raises
        ------
        UsageError
            When the debugger does not watch, as for `resume` and the declarations.
        """
        self._require_watching("pause")
        self._work.flush("pause")
        self._work.pause()

    def resume(self) -> None:
        """Resume checking; guards are armed again first."""
        self._require_watching("resume")
        self._work.rearm()
        self._work.invalidate_writers()
        self._work.observation.observe_all()
        self._work.resume()

    def _require_watching(self, method: str) -> None:
        if not self._started and not self._abandoned:  # a forked child may run on with its parent's debugger
            raise UsageError(
                f"{method}() does nothing: this debugger does not watch; call it inside its with block, or between "
                "shadowgraph.install() and uninstall()"
            )

    def __repr__(self) -> str:
        work = self._work
        held = (
            plural(len(work.context.graphs), "graph"),
            plural(len(work.context.ledger), "buffer"),
            plural(len(work.book.findings), "finding"),
            plural(len(work.book.notes), "note"),
        )
        return f"<Debugger of the {self.settings.backend} backend, {self._state}: {', '.join(held)}>"

    @property
    def _state(self) -> str:
        if self._work.lost is not None:
            return "device lost"
        if not self._started:
            return "not watching"
        return "paused" if self._work.paused else "watching"

    # -- for code that runs the debugger from outside -------------------------------------------------------------

    @property
    def eager_mode(self) -> eager.EagerMode | None:
        """The dispatch mode that observes eager operators, while started."""
        return self._mode if self._started else None

    @property
    def monitor(self) -> Monitor:
        """The debugger's `Monitor`."""
        return self._work

    @property
    def started(self) -> bool:
        """Whether the debugger is watching."""
        return self._started

    def before_fork(self) -> None:
        """Check before a fork, so that earlier damage is not attributed to the child."""
        if self._started and not self._work.context.engine.asynchronous:
            self._work.flush("fork")

    def after_fork(self) -> None:
        """In the child: continue with a copy of the state, and without findings."""
        recorder.forked()
        self._work.start_over()
        self._faults_before = internal_errors.counts

    # -- declarations -------------------------------------------------------------------------------------------

    def guard(self) -> AbstractContextManager[None]:
        """Context in which eager allocations of the calling thread become guarded static buffers of exact size.

        Raises
        ------
        UsageError
            When the debugger does not watch: before its start, and after its end.
        """
        self._require_watching("guard")
        return self._guard()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        before = self._allocator.ledger.newest
        with ExitStack() as stack:
            self._work.observe_here()
            if threading.get_ident() != self._mode_thread:
                holds, fencing = self._work.context.ledger.holds, self._work.fencing
                stack.enter_context(eager.EagerMode(self._allocator, holds, fencing=fencing))
            stack.enter_context(eager.guard_allocations())
            yield
        self._work.name_search.note_block(before)

    def name(self, name: str, owner: object) -> int:
        """Name the tensors reachable from an object by their attribute paths.

        Parameters
        ----------
        name
            The first part of every path, not empty.
        owner
            Any object that leads to tensors: a module, a dictionary, a runner. None of its code is run, and neither it
            nor a tensor is kept alive.

        Returns
        -------
        int
            Number of tensors found. Objects that can be weakly referenced are walked again as memory comes and goes, so
            0 may become more later.

        Raises
        ------
        UnknownBufferError
            For an object that cannot hold tensors: a number, a string, None, a class; and for one that holds none and
            is not walked again, such as a list of numbers.
        UsageError
            For a name that is no text, and when the debugger does not watch.
        """
        self._require_watching("name")
        if not isinstance(name, str) or not name:
            raise UsageError(f"name() takes a name as text, then the object, not {shown(name)} first")
        found = name_owner(self._work, name, owner)
        if not found and self.names.forget_if_empty(name):
            kind = type(owner).__name__
            raise UnknownBufferError(
                f"name({name!r}) found no tensor in this {kind}; name it once it holds some, or name an object that "
                "leads to it"
            )
        return found

    def name_variables(self, now: bool = True) -> None:
        """Name buffers without an owner name after variables that lead to them, also where `Settings.variable_names` is
        off.

        Parameters
        ----------
        now
            Also name all live buffers, which takes at most a second; else only what the setting names. `dump` and the
            end of a ``with debug()`` block do so by themselves.
        """
        self._work.name_search.enable()
        if now:
            self._work.name_search.name_rest(self.buffers)

    def prepare(self, graph: HostGraph | torch.cuda.CUDAGraph | None = None) -> AbstractContextManager[None]:
        """Mark host code that refreshes the inputs of a graph's coming replay.

        Optional: unmarked code is recognised by the memory that it touches. Entry and exit check guards.

        Parameters
        ----------
        graph
            The graph that replays next; None when it is not known.

        Raises
        ------
        UsageError
            When the debugger does not watch, and for something that is no graph.
        """
        self._require_watching("prepare")
        return self._prepare(model_of(graph))

    @contextmanager
    def _prepare(self, model: Graph | None) -> Iterator[None]:
        self._work.flush("prepare_begin")
        block = self._work.preparing.begin(model)
        try:
            yield
        finally:
            block.end()
            self._work.flush("prepare_end", Phase.PREPARE, model, model.replays + 1 if model else None)

    def locate(self, graph: HostGraph | torch.cuda.CUDAGraph | None = None) -> Location:
        """Compare all tracked memory after every node of a graph's next replay, or of every graph's when None.

        That replay computes the same results, with its nodes run one after the other. Copies take up to
        ``Settings.locate_memory`` bytes, integers, small and named buffers first; they are freed at the end of the
        replay.

        Parameters
        ----------
        graph
            A watched graph; None for every graph captured so far.

        Returns
        -------
        Location
            Has `write_sets` and `outcome` once the replay has ended; writes into the wrong buffer and races that it
            shows are findings.

        Raises
        ------
        UsageError
            For a graph that was captured before the debugger watched.
        """
        self._require_watching("locate")
        asked = self._work.locator.ask(self.graphs if graph is None else (self.graph(graph),))
        self._work.observation.observe_all()  # the next replay must be observed
        return asked

    # -- results ------------------------------------------------------------------------------------------------

    @property
    def findings(self) -> Findings:
        """Findings that have arrived, as a tuple; never waits."""
        if self._started:
            self._work.gather()
        return Findings(self._work.book.findings)

    @property
    def notes(self) -> Findings:
        """Notes, which are worth knowing and are not errors, as a tuple."""
        return Findings(self._work.book.notes)

    @property
    def inferred(self) -> Findings:
        """Reads by the host of values that a graph had changed, which are inferences (SG102) and no findings.

        Outputs, counters and tokens that are fed back are read in this way on purpose. Empty with
        ``Settings.list_inferred``: they are notes then.
        """
        if self._started:
            self._work.gather()
        return Findings(self._work.inferred.notes)

    def check(self) -> Findings:
        """Check guards and declared rules now, and return all findings so far.

        Raises
        ------
        UsageError
            When the debugger does not watch: nothing could be checked. `findings` has those that were made.
        """
        self._require_watching("check")
        self._work.recheck()
        return self.findings

    def report(self, file: IO[str] | None = None, quiet: bool = False) -> Report:
        """Check now and show the report: as HTML in a notebook, elsewhere printed.

        Parameters
        ----------
        file, quiet
            Where to print; standard output by default. With `quiet` nothing is shown.

        Returns
        -------
        Report
            Data only: it may be kept after the debugger has stopped. Notebooks show it as HTML, too; as the value or
            the argument where this call stands it is not shown a second time.

        Raises
        ------
        UsageError
            For a file that cannot be written to, such as a path.
        """
        if file is not None and not hasattr(file, "write"):
            raise UsageError(f"report() takes an open file, not {shown(file)}; for a page: shadowgraph report --html")
        if self._started:
            self.check()
        made = Report(self.facts())
        if not quiet:
            if file is not None or not displayed(made):
                made.print(file)
            if file is None:
                printed(made)
        return made

    def dump(
        self,
        path: str | os.PathLike[str],
        *,
        reason: str = "on demand",
        limit: int | None = None,
        redact: bool = False,
        background: bool = False,
        check: bool = True,
    ) -> Path:
        """Write all facts, and the relevant bytes of memory, into one file for `shadowgraph report`.

        Parameters
        ----------
        path
            A file, replaced atomically once the new one is complete, or a directory, in which the dump gets a unique
            name.
        reason
            The reason recorded in the dump.
        limit
            Largest size in bytes; ``Settings.dump_limit`` by default.
        redact
            Leave out all values of the program's memory (prompt ids may be anywhere) and the command line.
        background
            Return once the bytes are copied; a thread writes the file, and the interpreter's exit waits for it, half a
            minute at most. The file appears when it is complete. Errors in that thread are counted and logged.
        check
            Check first, as `report` does. Skipped for a lost device, which is not read. Pass False where a check may be
            running: in a signal handler, or in a log handler that receives a finding.

        Raises
        ------
        ShadowgraphError
            When the file cannot be written or the arguments are invalid.
        """
        if check and self._started and self._work.lost is None:
            with suppress(FindingsError):  # it is stored all the same
                self.check()
            self._work.name_search.name_rest(self.buffers)
        most = self.settings.dump_limit if limit is None else limit
        return take_dump(self._work, self.facts, path, reason=reason, limit=most, redact=redact, background=background)

    def facts(self) -> RunFacts:
        """The facts of a report, as data."""
        told = self._faults(), self._backend.left_alone(), self._stepped_aside
        ended = self._mode is not None and not self._started
        return facts_of(self._work, self._policy, tuple(self.findings), *told, ended)

    def _faults(self) -> dict[str, int]:
        """Internal errors since this debugger started."""
        before = self._faults_before
        return {
            what: count - before.get(what, 0)
            for what, count in internal_errors.counts.items()
            if count > before.get(what, 0)
        }

    def coverage(self) -> Coverage:
        """The guarded share of the bytes that graphs write, over the graphs captured so far."""
        return self._work.coverage()

    @property
    def names(self) -> NameBook:
        """Owner names and alias groups."""
        return self._work.context.names

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Models of the live graphs that were captured while this debugger ran."""
        return tuple(self._work.context.graphs.values())

    def graph(self, graph: HostGraph | torch.cuda.CUDAGraph) -> Graph:
        """The model of a graph: its nodes, their pointers, and the source lines that launched them.

        Parameters
        ----------
        graph
            A graph that was captured while a debugger watched.

        Returns
        -------
        Graph
            Holds addresses and no tensor. The same object for as long as the capture lives.

        Raises
        ------
        UsageError
            For a graph that was captured before a debugger watched.
        """
        return watched_model(graph, "graph")

    @property
    def buffers(self) -> Buffers:
        """Live buffers, oldest first, as a tuple."""
        self._allocator.guards.enter_waiting()
        return Buffers(self._work.context.ledger)

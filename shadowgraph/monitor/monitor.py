"""Listens to a backend, runs the checks at every boundary between two phases, keeps the findings.

Events come in any thread of the program. What they change is changed under one lock, `_lock`. Under it nothing calls
code of the program's, writes a file or waits for a device, but where a comment says why: lines for the log and records
for the run folder are posted and delivered when the event ends (see `outbox`), and a device is waited for before the
lock is taken.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import TypeVar

from shadowgraph.checks.base import Check, Checkpoint, Context, Step
from shadowgraph.checks.registry import Checks
from shadowgraph.common.errors import FindingsError
from shadowgraph.common.finalizer_safe_lock import FinalizerSafeLock, run_deferred
from shadowgraph.common.internal_errors import error_barrier, log
from shadowgraph.common.outbox import delivers, outbox
from shadowgraph.common.settings import Settings
from shadowgraph.common.weak_callbacks import weak_callback
from shadowgraph.engines.base import Engine, Shadow
from shadowgraph.graphs.dispatch import host_reads
from shadowgraph.graphs.dispatch.eager import rests
from shadowgraph.graphs.events import Listener
from shadowgraph.localize.flight_recorder import FlightRecorder
from shadowgraph.localize.launch_stepper import LaunchStepper
from shadowgraph.localize.locator import Locator
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.coverage import Coverage
from shadowgraph.model.graphs import Graph, Launch, Node
from shadowgraph.model.guards import Guard, guards_of
from shadowgraph.model.launches import IndexRule
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import current_stack
from shadowgraph.model.views import TensorView
from shadowgraph.monitor.boundaries import Boundaries
from shadowgraph.monitor.crash_recorder import CrashRecorder
from shadowgraph.monitor.event_barrier import event_handler
from shadowgraph.monitor.evidence_dispatch import EvidenceDispatcher
from shadowgraph.monitor.finding_pipeline import FindingPipeline
from shadowgraph.monitor.finding_store import FindingStore
from shadowgraph.monitor.graph_registry import GraphRegistry
from shadowgraph.monitor.idleness import Idleness
from shadowgraph.monitor.preparing import Preparing
from shadowgraph.monitor.program_hooks import ProgramHooks
from shadowgraph.monitor.rearming import Rearming
from shadowgraph.monitor.sampling import passing
from shadowgraph.monitor.sampling.looking_back import LookingBack
from shadowgraph.monitor.sampling.naps import Naps
from shadowgraph.monitor.shadow_cache import Plans
from shadowgraph.monitor.tensor_watches import Watches
from shadowgraph.monitor.write_recorder import WriteRecorder
from shadowgraph.tracking.active_guards import ActiveGuards
from shadowgraph.tracking.aliases import NameBook
from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.foreign import drop_stale
from shadowgraph.tracking.stores import StoreLog
from shadowgraph.tracking.writes import WriteLog, write_of

_T = TypeVar("_T")
_PATIENCE = 2.0  # seconds for a dump to wait for the lock: a thread that hangs may be what it is wanted for


class _Local(threading.local):
    """Replays that run in this thread, innermost last: a callable in a graph may replay another."""

    def __init__(self) -> None:
        self.replays: list[tuple[Graph, Shadow]] = []


class Monitor(Listener):
    """The part of a debugger that works: events in, findings out.

    Attributes
    ----------
    paused
        While true, events pass unseen.
    lost
        Why nothing can be read from the device any more, or None.
    preparing
        The `prepare` blocks that are open, of each thread.
    last_words
        What launches were given just before they ran.
    plans
        What is compared across replays.
    locator, stepper
        Find the node, or the launch, that did it, in a replay or a prepare that is looked at closely.
    outside
        Hooks of who runs the debugger from outside, and its limits.
    naps, idleness
        When eager operators pass unseen, with graphs and without.
    """

    def __init__(self, settings: Settings, allocator: HostAllocator, engine: Engine) -> None:
        self.settings = settings
        self.allocator = allocator
        self.journal = FlightRecorder()
        self.outside: ProgramHooks = ProgramHooks(settings)
        self._intake = take = FindingPipeline(settings, self.outside, weak_callback(self.coverage))
        names = NameBook(allocator.ledger)
        self.context = take.context = Context(
            settings, allocator, allocator.ledger, engine, names, weak_callback(take.take)
        )
        self.checks = Checks(self.context)
        self._standing = ActiveGuards(allocator, settings.near_guard)
        self._rearming = Rearming(self.context)
        self.locator = take.locator = Locator(
            self.context,
            self.checks,
            self._standing,
            weak_callback(take.located),
            weak_callback(take.not_seen),
            weak_callback(take.needs_culprit),
            self._rearming.is_broken,
        )
        self.stepper = take.stepper = stepper = LaunchStepper(self.context, self.journal, weak_callback(take.not_seen))
        self.watches = Watches(self.context)
        self.last_words = CrashRecorder(self.context, self.journal, self.checks.indices, self.outside.name)
        self.paused = False
        self.lost: str | None = None
        self.preparing = Preparing()
        preparing, outside = self.preparing, self.outside
        self._all: tuple[Check, ...] = (*self.checks.all, self.watches)
        self.plans = Plans(self.context, self._all)
        judge = EvidenceDispatcher(self.context, self._all, self.checks.out_of_bounds, self._rearming)
        self._bounds = Boundaries(
            self.context, judge, self._all, self._standing, self.stepper, self.outside, weak_callback(self._is_paused)
        )
        self._newcomers = GraphRegistry(self.context, allocator, outside, self._all)
        self._capturing = capturing = self._newcomers.capturing  # empty in most events
        # Only the checks that do something: this is the replay path.
        self._beginners = [c for c in self._all if type(c).replay_begins is not Check.replay_begins]
        self.naps = Naps(
            settings.watch_eager == "sampled" and engine.asynchronous,
            lambda: take.book.stirs,
            lambda: bool(stepper.armed or outside.guards_eager or preparing.anywhere or capturing),
            weak_callback(self._nap_turned),
            weak_callback(self._is_exact),
            lambda: outside.limit.stride,
        )
        self.idleness = Idleness(
            settings.watch_eager == "sampled", partial(getattr, self.naps, "idle"), weak_callback(self._falls_idle)
        )
        self._back = LookingBack(self.context, self.journal, outside, self.naps, self._bounds)
        self._seen = WriteRecorder(self.context, self.journal, self.naps, self.checks, self._all)
        self._sleepless = [c for c in self._beginners if c not in self.checks.needs_every_write]
        self._lock = FinalizerSafeLock()
        self._section = self._lock.within  # on the replay path, which settles by itself
        self._local = _Local()

    @property
    def book(self) -> FindingStore:
        """The findings."""
        return self._intake.book

    @book.setter
    def book(self, book: FindingStore) -> None:
        self._intake.book = book

    @property
    def inferred(self) -> FindingStore:
        """What follows from reads by the host alone."""
        return self._intake.inferred

    @delivers
    @event_handler
    def flush(
        self,
        at: str,
        phase: Phase | None = None,
        graph: Graph | None = None,
        replay: int | None = None,
        in_full: bool = False,
    ) -> None:
        """Check now, as the end of a phase; with `in_full` guards over their whole length."""
        if not self.paused and self._replaying is None:
            drop_stale(self.context.ledger)  # what was freed or moved must not be read
            with self._lock.section:
                self._back.look()
                self._bounds.close(at, phase, graph, replay, in_full=in_full)

    @delivers
    @event_handler
    def recheck(self) -> None:
        """Check guards and declared rules now."""
        self.flush("check", in_full=True)
        self.drain()
        if not self.paused:
            for check in self._all:
                with error_barrier("check"):
                    check.recheck(Checkpoint("check"))

    def start_over(self) -> None:
        """In a forked child: what was found is the parent's."""
        self._intake.start_over()
        self.outside.start_over()

    @delivers
    def lose(self, error: Exception) -> None:
        """The device is gone: stop checking, keep what is on the host."""
        self.paused = True
        with error_barrier("replays that passed"), self._lock.section:
            self._back.enter()
        if self.lost is None:
            self.lost = str(error).split("\n", 1)[0]
            log(logging.WARNING, "shadowgraph: checking ends, the device is lost: %s", self.lost)
            with error_barrier("last evidence"), suppress(FindingsError), self._lock.section:
                self._bounds.last(self.lost)
            self.last_words.examine()

    @delivers
    @event_handler
    def rearm(self) -> None:
        """Arm every standing guard anew, without looking at it."""
        with self._lock.section:
            self._back.forget()
        self.allocator.rearm()
        self._rearming.forget()
        self.context.writes.clear()

    def invalidate_writers(self) -> None:
        """There were writes that nobody saw: none that was seen is known to be the last."""
        self.checks.invalidate_writers()
        if self.naps.blind:  # and there will be more
            self.checks.invariants.blind_since = next(self.context.clock)

    @property
    def declared(self) -> int:
        """Changes with every declaration that a replay's comparison depends on."""
        return len(self.watches.watches) + self.checks.mutation.declared

    def coverage(self) -> Coverage:
        """Coverage of all graphs captured so far; of a lost device only those that were looked at before."""
        if self.lost is None:
            self._newcomers.introduce()
        return self._newcomers.coverage()

    @delivers
    def still(self, work: Callable[[], _T]) -> _T:
        """Call `work` while nothing is judged and no block changes hands, so that what it copies fits together.

        What it reads of a device has been waited for before. Where another thread keeps the lock for seconds, as one
        that hangs does, `work` is called without.
        """
        if self.lost is None and self.context.engine.lost is None:
            with error_barrier("wait before a copy"):
                self._bounds.wait(here=True)
        return self._lock.run(partial(self.allocator.lock.run, work, _PATIENCE), _PATIENCE)

    def guards(self) -> tuple[Guard, ...]:
        """The guards that stand now."""
        return self._standing.now()

    def is_tracked(self, where: ByteRange) -> bool:
        """Whether a range belongs to a buffer of the ledger."""
        return self.context.ledger.owner(where.start, where.stop) is not None

    # -- what the backend tells --------------------------------------------------------------------------------

    @property
    def _replaying(self) -> Graph | None:
        """The graph that replays in this thread."""
        replays = self._local.replays
        return replays[-1][0] if replays else None

    @delivers
    @event_handler
    def capture_began(self, graph: Graph) -> None:
        self.flush("capture_begin")
        if self.context.engine.asynchronous and not self.paused:
            self.drain(here=True)  # a capture has a stream of its own, and no launch of a later phase waits for it
        self._newcomers.capture_began(graph)
        self.outside.capture_began()
        self.naps.rouse()
        self.idleness.captured()

    @delivers
    @event_handler
    def capture_ended(self, graph: Graph) -> None:
        self._newcomers.captured(graph, self.lost is None and self.outside.limit.stopped is None)

    def graph_reset(self, graph: Graph) -> None:
        self._newcomers.dropped(graph)
        self._seen.dropped(graph.serial)
        self.plans.drop(graph)
        self.locator.dropped(graph)
        self.stepper.dropped(graph)
        self.journal.dropped(graph.serial)
        self.naps.dropped(graph.serial)

    @delivers
    @event_handler
    def replay_refused(self, graph: Graph) -> None:
        if not self.paused:
            drop_stale(self.context.ledger)
            if self.context.engine.asynchronous and self._newcomers.reads:
                self._bounds.wait(here=True)
            with self._lock.section:
                self._newcomers.introduce()
                self.checks.dangling.replay_begins(Checkpoint("replay_refused", None, graph, graph.replays + 1))

    @delivers
    @event_handler
    def replay_began(self, graph: Graph) -> None:  # noqa: C901  a handler of replays, redone as a whole
        due = self.outside.replay_due(graph.replays, self.naps.glances)
        self.paused = self.paused or self.outside.limit.stopped is not None
        if self.paused or not due:
            self.stepper.look_away()
            return
        if self.context.engine.asynchronous:
            run_deferred()
            if self._newcomers.reads or self.plans.waits(graph, self.declared):
                self._bounds.wait(here=True)  # so that what is read of it under the lock is there at once
        else:
            drop_stale(self.context.ledger)
        with self._section:
            self.context.graphs.setdefault(graph.serial, graph)
            if self._newcomers.waiting:
                self._newcomers.introduce()
            self._back.look()
            shadow = self.plans.of(graph, self.declared)
            outer = self._replaying
            if outer is not None:  # what ran so far in this thread were nodes of the outer graph
                self._bounds.close("replay_begin", Phase.REPLAY, outer, outer.replays)
            checkpoint = self._bounds.close("replay_begin", None, graph, graph.replays, take=shadow)
            if self._rearming.waiting:
                self._rearming.replay_begins(graph)
            for check in self._sleepless if self.naps.blind else self._beginners:
                check.replay_begins(checkpoint)
            if not self.context.engine.asynchronous:
                self._bounds.poll()
            if self.naps.blind:
                self.stepper.look_away()  # launches of this prepare passed unseen: the look is at a later one
            step_ends = self.stepper.armed and not self.naps.blind and self.stepper.ends(graph)
            look = self.locator.is_due(graph)
            if not (step_ends or look):
                self._replay_goes_on(graph, shadow, checkpoint)
        if step_ends or look:
            self._look_closely(graph, shadow, checkpoint, step_ends)
        run_deferred()

    def _looked(self, graph: Graph, meanwhile: WriteLog) -> None:
        """A replay has ended in which nodes were looked at."""
        if self.context.engine.asynchronous:
            self._bounds.wait(here=True)  # so that what is read of it under the lock is there at once
        with self._section:
            self.locator.replay_ended(graph, meanwhile)

    def _replay_goes_on(self, graph: Graph, shadow: Shadow, checkpoint: Checkpoint) -> None:
        self._seen.replay_begins()
        self._local.replays.append((graph, shadow))
        self.journal.replayed(graph, checkpoint.order)

    def _look_closely(self, graph: Graph, shadow: Shadow, checkpoint: Checkpoint, step_ends: bool) -> None:
        """A replay begins in which nodes are looked at, or before which a look at launches ends: both must know what
        was checked before, and what other streams do must not show while nodes are looked at.

        The wait for all streams needs no lock: what others launch after it is in the way of a look whether or not
        they were kept from it until here.
        """
        if self.context.engine.asynchronous:
            self._bounds.wait()
        with self._section:
            self._bounds.poll()
            if step_ends and self.stepper.armed:
                self.stepper.replay_began(graph, self._intake.needs_culprit)
            self._replay_goes_on(graph, shadow, checkpoint)
            if self.locator.is_due(graph):
                self.locator.replay_begins(graph)

    @delivers
    @event_handler
    def replays_passed(self, graph: Graph) -> None:
        run_deferred()
        with self._section:
            self._back.passed(graph.serial, self.paused)
        run_deferred()

    def node_ran(self, graph: Graph, node: Node, stores: StoreLog | None) -> None:
        replays = self._local.replays
        if self.paused or not replays or replays[-1][0] is not graph:
            return
        write = self._seen.of_node(graph, node, stores)
        with self._section:
            self._seen.note(write, Phase.REPLAY, graph)
        if write.opaque or self.settings.sync:
            self._bounds.guards_now(Checkpoint("node", Phase.REPLAY, graph, graph.replays))

    @property
    def wants_each_node(self) -> bool:
        return self.settings.sync or self.context.engine.asynchronous or self._seen.tells_of_nodes

    def nodes_ran(self, graph: Graph, nodes: Sequence[Node]) -> None:
        replays = self._local.replays
        if not self.paused and replays and replays[-1][0] is graph:
            with self._section:
                self._seen.note_nodes(graph, nodes)

    @delivers
    @event_handler
    def replay_failed(self, graph: Graph) -> None:
        """What its nodes did before it raised was done in this replay."""
        if self._replaying is graph:
            self._local.replays.pop()
            try:
                if not self.paused:
                    with self._lock.section:
                        self._bounds.close("replay_failed", Phase.REPLAY, graph, graph.replays)
            finally:
                self.locator.replay_ended(graph, complete=False)

    @delivers
    @event_handler
    def replay_ended(self, graph: Graph) -> None:
        replays = self._local.replays
        if not replays or replays[-1][0] is not graph:
            return
        _, shadow = replays.pop()
        if self.paused:
            self.locator.replay_ended(graph, complete=False)
            return
        run_deferred()  # a graph that died during this one took its pool along
        meanwhile = self.context.writes
        try:
            with self._section:
                self._bounds.close("replay_end", Phase.REPLAY, graph, graph.replays, compare=shadow)
        finally:
            if graph.serial in self.locator.armed:
                self._looked(graph, meanwhile)
        run_deferred()
        self.outside.replay_ended()
        if self.naps.wanted or self.naps.blind or rests:
            self.naps.replay_ended(graph.serial)

    @delivers
    @event_handler
    def launch_begins(self, launch: Launch, rules: tuple[IndexRule, ...]) -> None:
        if passing.on or self.paused or self._replaying is not None or self._captures_here:
            return
        model = self.preparing.graph
        phase = Phase.PREPARE if self.preparing else None
        # Judged when the device is lost, after others have begun: which replays had begun by now counts.
        step = Step(launch, False, False, self.context.replays()) if rules else None
        checkpoint = Checkpoint("launch_begins", phase, model, model.replays + 1 if model else None, step=step)
        if self.settings.sync:
            self.checks.indices.look(launch, rules, checkpoint)
        if self.context.engine.asynchronous:
            self.last_words.note(launch, rules, checkpoint)
        if self._rearming.waiting and not self.naps.blind:
            with self._lock.section:
                due = self._rearming.due(launch)
                if due:  # what has been written there until now is not lost
                    self._bounds.guards_now(checkpoint)
                    self._rearming.arm(due)
        if self.stepper.armed:
            self._step(launch, before=True)

    @delivers
    @event_handler
    def launch_ran(self, launch: Launch, stores: StoreLog | None) -> None:
        if passing.on or self.paused or self._replaying is not None or self._captures_here:
            return
        if self.naps.blind:
            self.naps.look()
        marked, model = bool(self.preparing), self.preparing.graph
        if stores is None and self._defers:
            with self._lock.section:
                self._seen.defer(launch, Phase.PREPARE if marked else None, model)
            return
        write = write_of(launch, stores, prepares=model.serial if model else None)
        with self._lock.section:
            self._seen.note(write, Phase.PREPARE if marked else None, None)
        if self.settings.sync:
            replay = model.replays + 1 if model else None
            self._bounds.guards_now(Checkpoint("launch", Phase.PREPARE if marked else None, model, replay))
        if self.stepper.armed:
            self._step(launch, before=False)

    @delivers
    @event_handler
    def host_read(self, view: TensorView, how: str, waits: bool = True) -> None:
        if self.paused or self._replaying is not None or self._captures_here:
            return
        if self.naps.blind:
            self.naps.look()
        if self.context.engine.asynchronous:
            if not self.is_tracked(view.hull):
                return
            if waits:  # as the read itself is about to
                self.drain(here=True)
        stack = current_stack()
        for check in self._all:
            if not self.naps.blind or check not in self.checks.needs_every_write:
                check.host_read(view, how, stack, Checkpoint("host_read"))

    @delivers
    @event_handler
    def retiring(self, buffer: Buffer) -> None:
        """A tenant's guards are about to be overwritten by the next tenant's: look a last time."""
        if self.paused or self._captures_here:
            return
        graph = self._replaying
        phase, replay = (Phase.REPLAY, graph.replays) if graph else (None, None)
        guards = guards_of(buffer, self.settings.near_guard)
        checkpoint = self._back.checkpoint() if graph is None else None
        checkpoint = checkpoint or Checkpoint(
            "retire", phase, graph, replay, self.context.writes, next(self.context.clock)
        )
        self.context.engine.check(checkpoint, guards)  # judged later: who calls holds the allocator's lock

    # -- parts -------------------------------------------------------------------------------------------------

    @property
    def _captures_here(self) -> bool:
        """Whether what this thread launches now is recorded by a capture."""
        return bool(self._capturing) and self._newcomers.captures_here

    def _is_paused(self) -> bool:
        return self.paused

    def _is_exact(self) -> bool:
        """Whether something is declared, or asked for, that is judged at each replay."""
        return bool(self.declared or self.checks.invariants.declared or self.settings.sync)

    def _nap_turned(self, asleep: bool) -> None:
        """From here on operators pass unseen, or are seen again after writes that nobody saw."""
        if not asleep:
            drop_stale(self.context.ledger)  # who resized what was not seen either
        with self._lock.section:
            if self.naps.asleep is not asleep:  # another thread has turned it since
                return
            now = next(self.context.clock)
            self._rearming.seen_since = inf if asleep else now
            if asleep:
                host_reads.rest(not self.checks.invariants.declared)  # those are judged at each read
                self.checks.invariants.blind_since = now
            else:
                host_reads.rest(False)
                self.checks.invalidate_writers()
                self.naps.seen_since = time.time()
            self.naps.blind = asleep
        if not asleep:
            self.idleness.again()
        if asleep and self.naps.taken == 1 and self.outside.tell is not None:
            outbox.write(partial(self.outside.tell, str(self.naps.sentence())))

    def _falls_idle(self) -> None:
        """Nothing was captured for long: what was written until now is judged, then operators pass unseen."""
        if self.paused or self._capturing or self.context.graphs or self.naps.asleep:
            return
        self.flush("idle")
        self.naps.begin_idle()
        self.idleness.begin()
        if self.outside.tell is not None:
            outbox.write(partial(self.outside.tell, str(self.idleness.sentence((), False))))

    @property
    def _defers(self) -> bool:
        """Whether nobody wants to hear of a write at once: in a nap, where it is kept for who is accused later."""
        return self.naps.asleep and not (self.watches.watches or self.stepper.armed or self.settings.sync)

    def _step(self, launch: Launch, before: bool) -> None:
        """Check beside a launch, as the end of a phase."""
        if self.stepper.give_up():
            return
        model = self.preparing.graph
        phase, replay = (Phase.PREPARE if self.preparing else None), (model.replays + 1 if model else None)
        if before:
            self._bounds.wait()
        with self._lock.section:
            if before:
                # What other streams do must not show between this check and the next, so that nothing may be launched
                # between the wait and the check: under the lock, but only for what came since the wait before it.
                self._bounds.wait()
                self._bounds.poll()
            step = self.stepper.begins(launch) if before else self.stepper.ran(launch)
            self._bounds.close("launch_begins" if before else "launch", phase, model, replay, step=step)

    @delivers
    @event_handler
    def gather(self) -> None:
        """Judge what has arrived; never waits."""
        if self._replaying is None and not self.paused and not self._bounds.busy:
            with self._lock.section:
                self._bounds.poll()

    def drain(self, here: bool = False) -> None:
        """Wait for everything that was asked for, or for what the current stream was asked for, and judge it."""
        self._bounds.wait(here)
        with self._lock.section:
            self._bounds.poll()

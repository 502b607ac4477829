"""The running debugger's central object: receives backend events, runs checks at phase boundaries, stores findings.

Events arrive in any thread of the program. The state they change is protected by one lock, `_lock`. No code of the
program runs under it, no file is written and no device wait happens, except where a comment says why: log lines and
records for the run folder are posted and delivered when the event ends (see `outbox`), and device waits happen before
the lock is taken.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, TypeVar

import torch

from shadowgraph.checks.base import Check, Checkpoint, Context, PoolAccess, Step
from shadowgraph.checks.dangling.check import Dangling
from shadowgraph.checks.invariants.check import Invariants
from shadowgraph.checks.invariants.indices import Indices
from shadowgraph.checks.lost_preparation.check import LostPreparations
from shadowgraph.checks.mutation.check import InGraphMutation
from shadowgraph.checks.out_of_bounds.check import OutOfBounds
from shadowgraph.checks.registry import Checks
from shadowgraph.checks.stale_rows.check import StaleRows
from shadowgraph.checks.stale_rows.write_patterns import WritePatterns
from shadowgraph.common.errors import FindingsError
from shadowgraph.common.finalizer_safe_lock import FinalizerSafeLock, run_deferred, weak_callback
from shadowgraph.common.internal_errors import error_barrier, log
from shadowgraph.common.outbox import delivers, outbox
from shadowgraph.common.settings import Settings
from shadowgraph.engines.base import Engine, Shadow
from shadowgraph.engines.losses import is_device_loss
from shadowgraph.graphs import launch_rows
from shadowgraph.graphs.dispatch import host_reads
from shadowgraph.graphs.dispatch.eager import rests
from shadowgraph.graphs.dispatch.eager_guard import EagerGuard
from shadowgraph.graphs.dispatch.fencing import Fencing
from shadowgraph.graphs.events import Listener
from shadowgraph.localize.flight_recorder import FlightRecorder
from shadowgraph.localize.launch_stepper import LaunchStepper
from shadowgraph.localize.locator import Locator
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.coverage import Coverage
from shadowgraph.model.graphs import Graph, Launch, Node
from shadowgraph.model.guards import Guard, guards_of
from shadowgraph.model.host_copies import HostWrite, QueuedCopy
from shadowgraph.model.launches import IndexRule, Pointer
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Stack, current_stack
from shadowgraph.model.views import TensorView
from shadowgraph.monitor.boundaries import Boundaries
from shadowgraph.monitor.check_budget import CheckBudget
from shadowgraph.monitor.crash_recorder import CrashRecorder
from shadowgraph.monitor.event_barrier import event_handler
from shadowgraph.monitor.evidence_dispatch import EvidenceDispatcher
from shadowgraph.monitor.fences import Fences
from shadowgraph.monitor.finding_pipeline import FindingPipeline
from shadowgraph.monitor.finding_store import FindingStore
from shadowgraph.monitor.graph_registry import GraphRegistry
from shadowgraph.monitor.idleness import Idleness
from shadowgraph.monitor.name_search import NameSearch
from shadowgraph.monitor.node_shadows import NodeShadows
from shadowgraph.monitor.preparing import PrepareBlock, Preparing
from shadowgraph.monitor.program_failures import BatchSources, ProgramFailures
from shadowgraph.monitor.rearming import Rearming
from shadowgraph.monitor.recorder.rows import Rows
from shadowgraph.monitor.sampling.observation import Observation
from shadowgraph.monitor.shadow_cache import ShadowCache
from shadowgraph.monitor.step_dates import dated
from shadowgraph.monitor.subscriptions import Subscriptions
from shadowgraph.monitor.tensor_watches import Watches
from shadowgraph.monitor.write_recorder import WriteRecorder
from shadowgraph.tracking import passing, steps
from shadowgraph.tracking.active_guards import ActiveGuards
from shadowgraph.tracking.aliases import NameBook
from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.foreign import drop_stale
from shadowgraph.tracking.novelty import Novelty
from shadowgraph.tracking.pool_watch import borrowers
from shadowgraph.tracking.stores import StoreLog
from shadowgraph.tracking.stream_order import order
from shadowgraph.tracking.writes import WriteLog, write_of

_T = TypeVar("_T")
_PATIENCE = 2.0  # seconds that a dump waits for the lock: the dump may be wanted because a thread hangs


class _Local(threading.local):
    """Replays running in this thread, innermost last: a callable in a graph may replay another graph."""

    def __init__(self) -> None:
        self.replays: list[tuple[Graph, Shadow]] = []


class Monitor(Listener):
    """Receives events and stores findings.

    Attributes
    ----------
    paused
        While true, events are ignored.
    lost
        Why the device can no longer be read, or None.
    preparing
        Open `prepare` blocks of each thread.
    last_words
        Arguments of recent launches, copied just before they ran.
    shadows, node_shadows
        Shadow copies to compare across observed replays, by graph; ranges that check nodes compare across all.
    locator, stepper
        Localization of the culprit node or launch, in a replay or a prepare chosen for it.
    subscriptions, batches
        Callbacks of code that runs the debugger from outside the program, and its sources of batches.
    budget, limit
        Which replays are checked, and what checking may cost.
    failures
        Exceptions of the program, with their context.
    name_search
        Names buffers after variables.
    eager_guard
        Which eager allocations are guarded, or None.
    fences, fencing
        The buffers behind which no memory is mapped, and which allocations become such; None for none.
    observation, idleness
        When eager operators pass unobserved, with graphs and without.
    write_patterns
        Judges the writes before replays that pass.
    novelty
        The largest sizes of steps so far; a larger step is observed in full.
    """

    def __init__(self, settings: Settings, allocator: HostAllocator, engine: Engine) -> None:
        self.settings = settings
        self.allocator = allocator
        self.flight_recorder = FlightRecorder()
        self.subscriptions, self.batches = Subscriptions(), BatchSources()
        self.failures = ProgramFailures(self.subscriptions.failures)
        self.eager_guard = guarding = EagerGuard(settings.guard_eager) if settings.guard_eager != "off" else None
        self.budget = budget = CheckBudget(
            settings, guarding, self.subscriptions, lambda: engine.checked_replays + steps.unchecked()
        )
        self.limit = budget.limit
        names = NameBook(allocator.ledger)
        self.name_search = search = NameSearch(names, allocator.ledger)
        self._pipeline = take = FindingPipeline(
            settings, search, self.batches, self.subscriptions.findings, self.flight_recorder.operators_before
        )
        self.context = take.context = Context(
            settings, allocator, allocator.ledger, engine, names, weak_callback(take.take), batch_of=self.batches.of
        )
        self.fences = fences = Fences(self.context, self.subscriptions, search.name)
        self.fencing = Fencing(settings.fence, weak_callback(fences.laid)) if settings.fence is not None else None
        self.checks = Checks(self.context)
        self._standing = ActiveGuards(allocator.guards, settings.near_guard)
        self._rearming = Rearming(self.context)
        take.stays = self._rearming.is_broken
        self.locator = take.locator = Locator(
            self.context,
            self.checks,
            self._standing,
            weak_callback(take.located),
            weak_callback(take.not_seen),
            weak_callback(take.needs_culprit),
            self._rearming.is_broken,
        )
        self.stepper = take.stepper = stepper = LaunchStepper(
            self.context, self.flight_recorder, weak_callback(take.not_seen)
        )
        self.watches = Watches(self.context)
        self.crash_recorder = CrashRecorder(self.context, self.flight_recorder, self.checks[Indices], search.name)
        self.paused = False
        self.lost: str | None = None
        self.preparing = preparing = Preparing()
        self._all: tuple[Check, ...] = (*self.checks.all, self.watches)
        self.shadows = ShadowCache(self.context, self._all)
        self.node_shadows = NodeShadows(self.context, self._all)
        self._rows = Rows(self.context)
        judge = EvidenceDispatcher(self.context, self._all, self.checks[OutOfBounds], self._rearming, self._rows)
        self._boundaries = Boundaries(
            self.context, judge, self._all, self._standing, self.stepper, self.limit, weak_callback(self._is_paused)
        )
        self._graphs = GraphRegistry(self.context, allocator, search, self._all)
        self._capturing = capturing = self._graphs.capturing  # empty during most events
        self._launch_checks = [c for c in self._all if type(c).launch_begins is not Check.launch_begins]
        # Only checks that override the hook: this is the replay path.
        self._beginners = [c for c in self._all if type(c).replay_begins is not Check.replay_begins]
        self._enders = [c for c in self._all if type(c).replay_ends is not Check.replay_ends]
        self._of_copies = [c for c in self._all if type(c).copy_queued is not Check.copy_queued]
        self.write_patterns = patterns = WritePatterns(
            self.checks[StaleRows], partial(getattr, self.flight_recorder, "observer")
        )
        fenced = settings.fence is not None  # operators that pass unseen would allocate without fences
        self.observation = Observation(
            settings.watch_eager == "sampled" and engine.asynchronous,
            partial(_news, take, self.checks[InGraphMutation], patterns),
            lambda: bool(stepper.armed or budget.guards_eager or fenced or preparing.anywhere or capturing),
            weak_callback(self._observation_changed),
            weak_callback(self._is_exact),
            lambda: budget.limit.stride,
            self._boundaries.due(),
            partial(getattr, patterns, "active"),
        )
        self.novelty = Novelty(partial(getattr, self.observation, "steady"), weak_callback(self.watch_step))
        self.idleness = Idleness(
            settings.watch_eager == "sampled" and not fenced,
            partial(getattr, self.observation, "idle"),
            weak_callback(self._falls_idle),
        )
        self._write_recorder = WriteRecorder(
            self.context, self.flight_recorder, self.observation, self.checks, self._all
        )
        self._sleepless = [c for c in self._beginners if c not in self.checks.needs_every_write]
        self._lock = FinalizerSafeLock()
        self._section = self._lock.within  # for the replay path, which calls `run_deferred` itself
        self._local = _Local()
        self.adjust(**settings.live())

    def adjust(self, **options: Any) -> None:
        """Change options that may change while it runs: those whose rows in `shadowgraph.common.options` are live.

        Raises
        ------
        UsageError
            For an option that does not exist or a value that does not fit.
        """
        self.settings = settings = self.settings.with_options(**options)
        self.checks[StaleRows].lenient = settings.stale_rows == "note"
        self.locator.reruns = settings.partial_reruns or settings.locate == "all"

    @property
    def book(self) -> FindingStore:
        """The findings."""
        return self._pipeline.book

    @property
    def inferred(self) -> FindingStore:
        """Reads by the host that are inferences and no findings."""
        return self._pipeline.inferred

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
        """Check now, as the end of a phase; with `in_full`, guards over their whole length."""
        if not self.paused and self._replaying is None:
            drop_stale(self.context.ledger)  # freed or moved memory must not be read
            with self._lock.section:
                self._enter_passed()
                observed = not self.observation.incomplete
                self._boundaries.close(at, phase, graph, replay, in_full=in_full, observed=observed)

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
        """In a forked child: discard the parent's findings."""
        self._pipeline.start_over()
        self.budget.start_over()
        self.failures.start_over()

    @delivers
    def lose(self, error: Exception) -> None:
        """The device is lost: stop checking, keep the state on the host."""
        self.paused = True
        with error_barrier("replays that passed"), self._lock.section:
            self._enter_passed()
        if self.lost is None:
            self.lost = str(error).split("\n", 1)[0]
            log(logging.WARNING, "shadowgraph: checking ends, the device is lost: %s", self.lost)
            with error_barrier("last evidence"), suppress(FindingsError), self._lock.section:
                self._boundaries.last(self.lost)
            self.crash_recorder.examine()

    @delivers
    @event_handler
    def rearm(self) -> None:
        """Re-arm every active guard without checking it."""
        with self._lock.section:
            self._enter_passed()
        self.allocator.guards.rearm_all()
        self._rearming.forget()
        self.context.writes.clear()

    def pause(self) -> None:
        """Ignore events and evidence from here on."""
        with self._lock.section, error_barrier("pause"):
            self._boundaries.poll()
            self.context.engine.pause(True)
        order.end()
        self.paused = True

    def resume(self) -> None:
        """Heed events again, unless checking has ended. Guards are armed again."""
        self.paused = self.lost is not None or self.limit.stopped is not None
        if not self.paused:
            with error_barrier("resume"):
                self.context.engine.pause(False)
            if not self.observation.incomplete:
                order.begin()

    def invalidate_writers(self) -> None:
        """Some writes passed unobserved: no observed write is known to be the last one."""
        self.checks.invalidate_writers()
        if self.observation.incomplete:  # more will pass unobserved
            self.checks[Invariants].unobserved_since = next(self.context.clock)

    @property
    def _declared(self) -> int:
        """Changes with every declaration on which a replay's comparison depends."""
        return len(self.watches.watches) + self.checks[InGraphMutation].declared

    def earlier_graphs(self) -> str | None:
        """A report line on graphs that were captured before the debugger watched; None without any."""
        return self._graphs.sentence()

    def coverage(self) -> Coverage:
        """Coverage of all graphs captured so far; after the loss of the device, only of graphs introduced before."""
        if self.lost is None:
            self._graphs.introduce()
        return self._graphs.coverage()

    @delivers
    def still(self, work: Callable[[], _T]) -> _T:
        """Call `work` while no evidence is dispatched and no block changes owner, so that its copies are consistent.

        The device memory that it reads has been waited for. If another thread holds the lock for seconds, for example
        because it hangs, `work` runs without the lock.
        """
        if self.lost is None and self.context.engine.lost is None:
            with error_barrier("wait before a copy"):
                self._boundaries.wait(here=True)
        return self._lock.run(partial(self.allocator.lock.run, work, _PATIENCE), _PATIENCE)

    def guards(self) -> tuple[Guard, ...]:
        """The active guards."""
        return self._standing.now()

    @delivers
    @event_handler
    def observe_here(self) -> None:
        """Observe this thread's next operators; what was broken before is checked first."""
        if self.observation.incomplete:
            if not self.paused and self._replaying is None:
                self._check_unobserved()
            self.observation.observe_here()

    def _check_unobserved(self) -> None:
        """Check what launches have left that were not observed, so that it is not attributed to the next ones."""
        with self._lock.section:
            self._enter_passed()
            self._boundaries.close("check", None, None, None, observed=False)

    @delivers
    @event_handler
    def watch_step(self, reason: str) -> None:
        """Observe a step in full that is about to be prepared in this thread; waits for no device.

        What earlier replays left is checked first, so that it is not attributed to this step.

        Parameters
        ----------
        reason
            Why, for the log.
        """
        if self.paused or self._capturing or self._replaying is not None or not self.observation.steady:
            return
        self._check_unobserved()
        self.observation.observe_step()
        for check in self._all:
            check.novel()
        log(logging.DEBUG, "shadowgraph: a step is watched in full: %s", reason)

    # -- events from the backend --------------------------------------------------------------------------------

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
            self.drain(here=True)  # a capture has its own stream, and no launch of a later phase waits for it
            order.host_waits_for_all()  # torch does before most captures
        self._graphs.capture_began(graph)
        self._rows.capture_began(graph)
        self.budget.capture_began()
        self.observation.observe_all()
        self.idleness.captured()

    @delivers
    @event_handler
    def capture_ended(self, graph: Graph) -> None:
        self._rows.captured(graph)
        for check in self._all if not self.paused else ():
            with error_barrier("end of a capture"):
                check.capture_ended(graph)
        if self.settings.undefined:  # from here on eager writes to the capture's memory count
            self.allocator.guards.enter_waiting()
        self._graphs.captured(graph, self.lost is None and self.limit.stopped is None)
        if not self._graphs.waiting:
            self._rows.name_buffers()

    def graph_reset(self, graph: Graph) -> None:
        self._graphs.dropped(graph)
        self._write_recorder.dropped(graph.serial)
        self.shadows.drop(graph)
        self.node_shadows.dropped(graph)
        self.locator.dropped(graph)
        self.stepper.dropped(graph)
        self.flight_recorder.dropped(graph.serial)
        self._rows.dropped(graph)
        self.observation.dropped(graph.serial)
        self._boundaries.dropped(graph)
        self.novelty.forget(graph.serial)

    @delivers
    @event_handler
    def replay_refused(self, graph: Graph) -> None:
        if not self.paused:
            drop_stale(self.context.ledger)
            if self.context.engine.asynchronous and self._graphs.reads:
                self._boundaries.wait(here=True)
            with self._lock.section:
                self._graphs.introduce()
                self.checks[Dangling].replay_begins(Checkpoint("replay_refused", None, graph, graph.replays + 1))

    @delivers
    @event_handler
    def replay_began(self, graph: Graph) -> None:
        if not self._is_looked_at(graph):
            self.stepper.look_away()
            return
        self._make_ready(graph)
        with self._section:
            shadow, checkpoint = self._check_begin(graph)
            step_ends, look = self._ends_steps(graph), self.locator.is_due(graph)
            if not (step_ends or look):
                self._replay_goes_on(graph, shadow, checkpoint)
        if step_ends or look:
            self._look_closely(graph, shadow, checkpoint, step_ends)
        run_deferred()

    def _is_looked_at(self, graph: Graph) -> bool:
        """Whether this replay is one that is looked at, within the limits."""
        due = self.budget.replay_due(graph.replays, self.observation.looks_closer)
        if self.limit.stopped is not None and not self.paused:
            self.pause()
        return due and not self.paused

    def _make_ready(self, graph: Graph) -> None:
        """Do what must be done before the lock is taken."""
        if not self.context.engine.asynchronous:
            drop_stale(self.context.ledger)
            return
        run_deferred()
        if self._graphs.reads or self.shadows.waits(graph, self._declared):
            self._boundaries.wait(here=True)  # so that reads of it under the lock return at once

    def _check_begin(self, graph: Graph) -> tuple[Shadow, Checkpoint]:
        """The boundary before a replay."""
        self._graphs.replays(graph)
        if self._graphs.waiting:
            self._graphs.introduce()
            self._rows.name_buffers()
        self._enter_passed()
        if self.observation.unobserved:
            self.write_patterns.replayed(graph.serial, time.time())
        shadow = self.shadows.of(graph, self._declared)
        self.node_shadows.list(graph)
        outer, observed = self._replaying, not self.observation.incomplete
        if outer is not None:  # what ran so far in this thread were nodes of the outer graph
            self._boundaries.close("replay_begin", Phase.REPLAY, outer, outer.replays)
        checkpoint = self._boundaries.close(
            *("replay_begin", None, graph, graph.replays),
            take=shadow,
            observed=observed,
            launched=bool(self._rearming.waiting),  # before guards are re-armed
        )
        self._rearming.replay_begins(graph)
        for check in self._beginners if observed else self._sleepless:
            check.replay_begins(checkpoint)
        if not self.context.engine.asynchronous:
            self._boundaries.poll()
        return shadow, checkpoint

    def _ends_steps(self, graph: Graph) -> bool:
        """Whether this replay ends a localization of launches; one whose launches were not observed is put off."""
        if self.observation.incomplete:
            self.stepper.look_away()
            return False
        return self.stepper.armed and self.stepper.ends(graph)

    def _looked(self, graph: Graph, meanwhile: WriteLog) -> None:
        """A replay with node localization has ended."""
        if self.context.engine.asynchronous:
            self._boundaries.wait(here=True)  # so that reads of it under the lock return at once
        with self._section:
            self.locator.replay_ended(graph, meanwhile)

    def _replay_goes_on(self, graph: Graph, shadow: Shadow, checkpoint: Checkpoint) -> None:
        self._write_recorder.replay_begins()
        self._local.replays.append((graph, shadow))
        self._rows.replay_began(graph)
        self.flight_recorder.replayed(graph, checkpoint.order)

    def _look_closely(self, graph: Graph, shadow: Shadow, checkpoint: Checkpoint, step_ends: bool) -> None:
        """Begin a replay in which nodes are localized, or which ends a localization of launches: both need the results
        of earlier checks, and node localization must not see the work of other streams.

        The wait for all streams needs no lock: launches that other threads make after it disturb a localization whether
        or not the lock kept them back until here.
        """
        if self.context.engine.asynchronous:
            self._boundaries.wait()
        with self._section:
            self._boundaries.poll()
            if step_ends and self.stepper.armed:
                self.stepper.replay_began(graph, self._pipeline.needs_culprit)
            self._replay_goes_on(graph, shadow, checkpoint)
            if self.locator.is_due(graph):
                self.locator.replay_begins(graph)

    @delivers
    @event_handler
    def replays_passed(self, graph: Graph) -> None:
        run_deferred()
        with self._section:
            count = self._take_passed()
            if not self.paused:
                self._boundaries.relist()
                self._boundaries.poll()
                self.observation.replays_passed(graph.serial, count)
        self.write_patterns.judge()
        run_deferred()

    @event_handler
    def checks_itself(self, graph: Graph, end: bool) -> None:
        if not self.paused:
            self._boundaries.node_check(graph, end)
            (self._rows.replay_ended if end else self._rows.replay_began)(graph)

    def node_ran(self, graph: Graph, node: Node, stores: StoreLog | None) -> None:
        replays = self._local.replays
        if self.paused or not replays or replays[-1][0] is not graph:
            return
        write = self._write_recorder.of_node(graph, node, stores)
        with self._section:
            self._write_recorder.note(write, Phase.REPLAY, graph)
        if write.opaque or self.settings.sync:
            self._boundaries.guards_now(Checkpoint("node", Phase.REPLAY, graph, graph.replays))

    @property
    def wants_each_node(self) -> bool:
        return self.settings.sync or self.context.engine.asynchronous or self._write_recorder.tells_of_nodes

    def nodes_ran(self, graph: Graph, nodes: Sequence[Node]) -> None:
        replays = self._local.replays
        if not self.paused and replays and replays[-1][0] is graph:
            with self._section:
                self._write_recorder.note_nodes(graph, nodes)

    @delivers
    @event_handler
    def replay_failed(self, graph: Graph) -> None:
        """Nodes that ran before the error belong to this replay."""
        if self._replaying is graph:
            self._local.replays.pop()
            try:
                if not self.paused:
                    with self._lock.section:
                        self._boundaries.close("replay_failed", Phase.REPLAY, graph, graph.replays)
                        self._rows.replay_failed(graph)
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
        run_deferred()  # a graph destroyed during this one took its pool along
        meanwhile = self.context.writes
        try:
            with self._section:
                ended = self._boundaries.close("replay_end", Phase.REPLAY, graph, graph.replays, compare=shadow)
                if graph.host_copies:
                    for check in self._enders:
                        check.replay_ends(ended)
                self._rows.replay_ended(graph)
        finally:
            if graph.serial in self.locator.armed:
                self._looked(graph, meanwhile)
        run_deferred()
        if self.write_patterns.due:
            self.write_patterns.judge()
        self.budget.replay_ended(bool(graph.check_nodes) or not steps.checks(graph))
        if self.observation.wanted or self.observation.incomplete or rests:
            self.observation.replay_ended(graph.serial)

    @delivers
    @event_handler
    def launch_begins(self, launch: Launch, rules: tuple[IndexRule, ...]) -> None:
        if passing.on or self.paused or self._replaying is not None or self._captures_here:
            return
        self._rows.launch_begins(launch)
        model = self.preparing.graph
        phase = Phase.PREPARE if self.preparing else None
        # Judged when the device is lost, after later replays have begun: the count must be that of now.
        step = Step(launch, False, False, self.context.replays()) if rules else None
        checkpoint = Checkpoint("launch_begins", phase, model, model.replays + 1 if model else None, step=step)
        if self.settings.sync:
            self.checks[Indices].look(launch, rules, checkpoint)
        if self.context.engine.asynchronous:
            self.crash_recorder.note(launch, rules, checkpoint)
            if not self.observation.incomplete:
                self._tell_of_launch(launch, model)
        if self._rearming.waiting and not self.observation.incomplete:
            with self._lock.section:
                due = self._rearming.due(launch)
                if due:  # check first: re-arming would erase earlier damage
                    self._boundaries.guards_now(checkpoint)
                    self._rearming.rearm(due)
        if self.stepper.armed:
            self._step(launch, before=True)

    def _tell_of_launch(self, launch: Launch, model: Graph | None) -> None:
        """Tell the checks that keep bytes which a launch is about to overwrite."""
        for check in self._launch_checks:
            if check.expects_launches:
                with self._lock.section, error_barrier("launch that begins"):
                    check.launch_begins(launch, model)

    @delivers
    @event_handler
    def planned(self, launch: Launch, graph: Graph | None, where: ByteRange) -> None:
        """A planner is about to write into some bytes for the graph's coming replay, where no launch is seen."""
        if passing.on or self.paused or self.observation.incomplete or self._replaying is not None:
            return
        with self._lock.section:
            self.checks[LostPreparations].planned(launch, graph, where)

    @event_handler
    def prepared(self, block: PrepareBlock, graph: Graph | None) -> None:
        """It is known now which graph's replay a block prepares, or that it prepares none."""
        block.graph = graph
        with self._lock.section:
            self.checks[LostPreparations].known(block.since, graph)

    @delivers
    @event_handler
    def launch_ran(self, launch: Launch, stores: StoreLog | None) -> None:
        if passing.on or self.paused or self._replaying is not None or self._captures_here:
            return
        self._rows.launch_ran(launch)
        if self.observation.incomplete:
            self.observation.resume()
        marked, model = bool(self.preparing), self.preparing.graph
        if stores is None and self._defers:
            with self._lock.section:
                self._write_recorder.defer(launch, Phase.PREPARE if marked else None, model)
            return
        write = write_of(launch, stores, prepares=model.serial if model else None)
        with self._lock.section:
            self._write_recorder.note(write, Phase.PREPARE if marked else None, None)
        if self.settings.sync:
            replay = model.replays + 1 if model else None
            self._boundaries.guards_now(Checkpoint("launch", Phase.PREPARE if marked else None, model, replay))
        if self.stepper.armed:
            self._step(launch, before=False)

    @event_handler
    def operands_read(self, name: str, pointers: Sequence[Pointer]) -> None:
        if not (self.paused or self.observation.incomplete or self._replaying is not None or self._captures_here):
            for check in self._all:
                check.operands_read(name, pointers)

    @delivers
    @event_handler
    def host_read(self, view: TensorView, how: str, waits: bool = True) -> None:
        if self.paused or self._replaying is not None or self._captures_here:
            return
        if self.observation.incomplete:
            self.observation.resume()
        if waits:  # a thread without a mode tells by this alone
            order.host_waits_here()
        if self.context.engine.asynchronous:
            if not self.context.ledger.holds(view.hull):
                return
            if waits:  # as the read itself is about to
                self.drain(here=True)
        self._check_host_read(view, how, current_stack())

    @delivers
    @event_handler
    def pool_read(self, tensor: torch.Tensor, view: TensorView, how: str) -> None:
        if self._observes_here:
            read = _pool_access(tensor, view, how, self.allocator)
            with self._lock.section:
                for check in self._all:
                    check.pool_read(read, Checkpoint("host_read"))

    @delivers
    @event_handler
    def pool_written(self, tensor: torch.Tensor, view: TensorView, how: str) -> None:
        if self._observes_here:
            written = _pool_access(tensor, view, how, self.allocator)
            with self._lock.section:
                for check in self._all:
                    check.pool_written(written)

    @property
    def _observes_here(self) -> bool:
        """Whether this thread runs eager code, and all of that is observed."""
        apart = self._replaying is not None or self._captures_here
        return not (self.paused or apart or self.observation.incomplete)

    @delivers
    @event_handler
    def copy_queued(self, copy: QueuedCopy) -> None:
        if passing.on or self.paused or self._replaying is not None or self._captures_here:
            return
        model = self.preparing.graph
        phase, replay = (Phase.PREPARE if self.preparing else None), (model.replays + 1 if model else None)
        with self._lock.section:
            now, observed = next(self.context.clock), not self.observation.incomplete
            checkpoint = Checkpoint("copy", phase, model, replay, order=now, observed=observed)
            for check in self._of_copies:
                check.copy_queued(copy, checkpoint)

    @event_handler
    def host_write_begins(self, write: HostWrite) -> None:
        if not self.paused:
            with self._lock.section:
                for check in self._of_copies:
                    check.host_write_begins(write)

    @event_handler
    def host_write_ran(self, write: HostWrite) -> None:
        if not self.paused:
            with self._lock.section:
                for check in self._of_copies:
                    check.host_write_ran(write)

    @delivers
    @event_handler
    def retiring(self, buffer: Buffer) -> None:
        """The next tenant is about to overwrite a tenant's guards: check them a last time."""
        if self.paused or self._captures_here:
            return
        graph = self._replaying
        phase, replay = (Phase.REPLAY, graph.replays) if graph else (None, None)
        guards = guards_of(buffer, self.settings.near_guard)
        checkpoint = Checkpoint(
            *("retire", phase, graph, replay, self.context.writes, next(self.context.clock)),
            observed=not self.observation.incomplete,
        )
        checkpoint = dated(checkpoint)
        try:  # the caller holds the allocator's lock: evidence is dispatched later, and so is the end of a lost device
            self.context.engine.check(checkpoint, guards)
        except Exception as error:
            if not is_device_loss(error):
                raise
            self.paused = True
            outbox.write(partial(self.lose, error))

    # -- parts -------------------------------------------------------------------------------------------------

    def _enter_passed(self) -> None:
        """Enter the replays that passed unobserved until now."""
        self.observation.looked(self._take_passed())

    def _take_passed(self) -> int:
        """The same for a caller that reports them to `observation`; returns how many."""
        passed = self.flight_recorder.enter_passed(self.context.clock)
        if passed:
            self.budget.replays_passed(len(passed))
            for each in passed:
                self.write_patterns.replayed(each.graph.serial, each.time)
        return len(passed)

    @property
    def _captures_here(self) -> bool:
        """Whether launches of this thread are now recorded by a capture."""
        return bool(self._capturing) and self._graphs.captures_here

    def _check_host_read(self, view: TensorView, how: str, stack: Stack) -> None:
        for check in self._all:
            if not self.observation.incomplete or check not in self.checks.needs_every_write:
                check.host_read(view, how, stack, Checkpoint("host_read"))

    def _is_paused(self) -> bool:
        return self.paused

    def _is_exact(self) -> bool:
        """Whether a declaration or a setting requires a check at every replay."""
        compared = self.node_shadows.cover or not self.checks[InGraphMutation].protects
        return bool(self.watches.watches or not compared or self.checks[Invariants].declared or self.settings.sync)

    def _observation_changed(self, unobserved: bool) -> None:
        """Operators pass unobserved from here on, or are observed again after unobserved writes."""
        if not unobserved:
            drop_stale(self.context.ledger)  # resizes were not observed either
        with self._lock.section:
            if self.observation.unobserved is not unobserved:  # another thread has changed it since
                return
            now = next(self.context.clock)
            self._rearming.observed_since = inf if unobserved else now
            if unobserved:
                order.end()
                self.node_shadows.list_all()
                host_reads.rest(not self.checks[Invariants].declared)  # declared rules are checked at each host read
                self.checks[Invariants].unobserved_since = now
            else:
                host_reads.rest(False)
                order.begin()
                self.checks.invalidate_writers()
                self.observation.observed_since = time.time()
            self.observation.incomplete = unobserved
            if unobserved:
                with error_barrier("patterns of writes"):
                    self.write_patterns.begin()
        with error_barrier("operators in the launch log"):
            launch_rows.log_operators(self.observation.unobserved)
        if not unobserved:
            self.idleness.again()
        if unobserved and self.observation.periods == 1:
            self.subscriptions.report_lines.post(str(self.observation.sentence()))

    def _falls_idle(self) -> None:
        """No capture for long: check the writes so far, then let operators pass unobserved."""
        if self.paused or self._capturing or self.context.graphs or self.observation.unobserved:
            return
        self.flush("idle")
        self.observation.begin_idle()
        self.idleness.begin()
        self.subscriptions.report_lines.post(str(self.idleness.sentence((), False)))

    @property
    def _defers(self) -> bool:
        """Whether no check needs a write at once: in the steady state, writes are kept only to name culprits later."""
        return self.observation.unobserved and not (self.watches.watches or self.stepper.armed or self.settings.sync)

    def _step(self, launch: Launch, before: bool) -> None:
        """Check next to a launch, as the end of a phase."""
        if self.stepper.give_up():
            return
        model = self.preparing.graph
        phase, replay = (Phase.PREPARE if self.preparing else None), (model.replays + 1 if model else None)
        if before:
            self._boundaries.wait()
        with self._lock.section:
            if before:
                # No work of other streams may come between this check and the next, hence the wait under the lock; it
                # covers only what was submitted since the wait before it.
                self._boundaries.wait()
                self._boundaries.poll()
            step = self.stepper.begins(launch) if before else self.stepper.ran(launch)
            at = "launch_begins" if before else "launch"
            self._rearming.stepped(self._boundaries.close(at, phase, model, replay, step=step))

    @delivers
    @event_handler
    def gather(self) -> None:
        """Dispatch the evidence that has arrived; never waits."""
        if self._replaying is None and not self.paused and not self._boundaries.busy:
            with self._lock.section:
                self._boundaries.poll()

    def drain(self, here: bool = False) -> None:
        """Wait for all submitted checks, or with `here` for those of the current stream, and dispatch the results."""
        self._boundaries.wait(here)
        with self._lock.section:
            self._boundaries.poll()


def _pool_access(tensor: torch.Tensor, view: TensorView, how: str, allocator: HostAllocator) -> PoolAccess:
    """The facts of a read or write; no tensor is held."""
    with torch._C.DisableTorchFunction():
        storage = tensor.untyped_storage()
    sight = borrowers.see(storage, allocator.ledger.next_serial()) if allocator.lends(storage) else None
    return PoolAccess(view, how, sight, (storage.data_ptr(), storage.nbytes()))


def _news(take: FindingPipeline, mutation: InGraphMutation, patterns: WritePatterns) -> int:
    """A number that changes with each event that is a reason to observe."""
    return take.book.stirs + mutation.stirs + patterns.stirs

"""What displays of a running debugger are made of: the facts of its report, and the names of its buffers.

`facts_of` is called by `Debugger.facts`, for reports and dumps, `LiveNames` by HTML representations. In the caller's
thread; without a lock of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from shadowgraph.checks.base import Context
from shadowgraph.checks.headroom.check import Headroom
from shadowgraph.checks.mutation.check import InGraphMutation
from shadowgraph.checks.undefined.check import UndefinedInfluence
from shadowgraph.graphs.dispatch.eager import anyone_rests
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Finding
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import GuardPolicy
from shadowgraph.model.run_facts import Replays, RunFacts
from shadowgraph.monitor.monitor import Monitor
from shadowgraph.monitor.recorder.recorder import recorder
from shadowgraph.tracking import steps


class LiveNames:
    """Names of a debugger's buffers, from its ledger and its name book."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def knows(self, thing: object) -> bool:
        if isinstance(thing, Buffer):
            return self._context.ledger.get(thing.serial) is thing
        return isinstance(thing, Graph) and self._context.graphs.get(thing.serial) is thing

    def called(self, buffer: object) -> str:
        assert isinstance(buffer, Buffer)
        return self._context.names.name_of(buffer)[0]

    def at(self, address: int) -> tuple[str, int] | None:
        buffer = self._context.ledger.owner(address, address + 1)
        return (self.called(buffer), address - buffer.start) if buffer is not None else None


def facts_of(
    work: Monitor,
    policy: GuardPolicy,
    findings: tuple[Finding, ...],
    faults: Mapping[str, int],
    left_alone: Mapping[str, int],
    stepped_aside: Mapping[str, int],
    ended: bool,
) -> RunFacts:
    """The current facts, as data.

    Parameters
    ----------
    faults, left_alone, stepped_aside
        Counts by reason: internal errors, captures without guards, and other cases left to the program.
    ended
        Whether the debugger has ended.
    """
    names = work.context.names
    return RunFacts(
        findings=findings,
        notes=work.book.notes,
        parts=work.book.parts,
        suppressed=work.book.suppressed,
        coverage=work.coverage(),
        graphs=tuple((graph.name, len(graph.nodes), graph.replays) for graph in work.context.graphs.values()),
        faults=dict(faults),
        guards_shrunk=policy.shrunk,
        guards_dropped=policy.dropped,
        left_alone=dict(left_alone),
        stepped_aside=dict(stepped_aside),
        lost=work.lost,
        last_values=tuple(work.shadows.last_values()) if work.lost else (),
        last_launches=work.crash_recorder.launches() if work.lost else (),
        names_unread=names.unread,
        names_cut_short=names.truncated,
        limits=tuple(filter(None, _limits(work, stepped_aside))),
        failures=work.failures.all,
        replays=Replays(work.budget.replays, work.budget.checked, work.budget.observed),
        high_water=work.checks[Headroom].rows(),
        fences=work.fences.rows(),
        suppressions=work.book.rule_counts,
        hidden=work.book.hidden,
        ended=ended,
        watches=tuple((watch.name, tuple(watch.changes), watch.dropped) for watch in work.watches.watches),
    )


def _limits(work: Monitor, stepped_aside: Mapping[str, int]) -> tuple[str | None, ...]:
    """Report lines on what was not observed, not kept or not counted as a finding."""
    sampling = (
        *(_observation(work), work.novelty.sentence(), steps.sentence()),
        *(work.checks[InGraphMutation].sentence(), work.node_shadows.sentence(work.observation.wanted)),
        work.write_patterns.sentence(),
        *(_idle(work), _operators(work), _unlearnt(work)),
    )
    undefined = work.checks.find(UndefinedInfluence)
    tried = undefined.sentence() if undefined is not None else None
    return (
        work.limit.sentence(),
        work.earlier_graphs(),
        *sampling,
        tried,
        _inferred(work),
        work.book.sentence(),
        work.fences.sentence(stepped_aside),
        *recorder.reasons,
    )


def _operators(work: Monitor) -> str | None:
    """A report line where the observer in C++ was wanted and does not note all operators, or no captures."""
    observer, settings = work.flight_recorder.observer, work.settings
    if observer is not None:
        return observer.sentence()
    wanted = settings.backend == "cuda" and settings.capture_lines == "learnt"
    return "captures go through a dispatch mode: without the observer in C++ no lines are learnt" if wanted else None


def _unlearnt(work: Monitor) -> str | None:
    """A report line on graphs of which some nodes have no line. Reads no graph."""
    count = sum(graph.unlearnt for graph in work.context.graphs.values())
    graphs = "graph" if count == 1 else "graphs"
    return f"lines not learnt: of {count} {graphs}, for kernels that C functions launched" if count else None


def _observation(work: Monitor) -> str | None:
    """A report line on the steady state, unless it was posted when the first period began."""
    return None if work.subscriptions.report_lines else work.observation.sentence()


def _inferred(work: Monitor) -> str | None:
    """A report line with the number of inferences that are no findings."""
    notes = work.inferred.notes
    if not notes:
        return None
    times = sum(note.occurrences for note in notes)
    count = f"{times:,} reads" if times != 1 else "1 read"
    return f"{count} by the host of what a graph had changed (SG102) counted as no finding; list_inferred shows them"


def _idle(work: Monitor) -> str | None:
    """A report line on operators that passed unobserved before the first capture; omitted where already told."""
    if work.subscriptions.report_lines and work.observation.idle:
        return None
    return work.idleness.sentence(work.context.graphs.values(), anyone_rests())

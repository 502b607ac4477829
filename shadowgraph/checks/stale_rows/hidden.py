"""Whether a graph hides stale rows itself: runs with other values in them change no memory that outlasts the graph.

Used by `StaleRows` on the host, for errors about graphs that may select rows. Requests are made under the debugger's
lock as a replay begins; the backend conducts the experiment before that replay, in the replaying thread, without it. It
is refused beside other threads of the program: all memory that the graph may write is restored, and with it what these
wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from shadowgraph.checks.base import Context
from shadowgraph.checks.row_epochs import Rows
from shadowgraph.checks.undefined.fills import own_buffers
from shadowgraph.common.errors import FindingsError
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.common.program_threads import other_threads
from shadowgraph.graphs.rerunning import NotRerun, state_within
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import guards_of
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.reruns import AllocationOf, Bytes, Experiment, Fill, Reruns


@dataclass(slots=True, eq=False)
class Question:
    """Whether stale rows of one input are hidden.

    Attributes
    ----------
    stale, fresh
        Rows that hold values of an older replay, and a row that was refreshed.
    answered
        Called once with the answer; None where the graph could not be run. It may raise what a debugger raises in sync
        mode.
    hidden
        The answer of the runs.
    """

    rows: Rows
    stale: Sequence[int]
    fresh: int
    answered: Callable[[bool | None], None]
    hidden: bool | None = None

    def where(self) -> list[ByteRange]:
        """The bytes of the stale rows."""
        return [self.rows.span(row, row) for row in self.stale]


class HiddenRows:
    """The questions about the replay that each graph is about to begin, one experiment for all of a replay."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._asked: dict[int, list[Question]] = {}  # by the graph's serial

    def begins(self, graph: Graph) -> None:
        """A replay begins; answer what was asked about one that never ran."""
        self._answer(self._asked.pop(graph.serial, []))

    def ask(self, graph: Graph, question: Question) -> None:
        """Try it before the replay that has just begun."""
        asked = self._asked.setdefault(graph.serial, [])
        asked.append(question)
        if len(asked) == 1:
            state = partial(self._state, graph, asked)
            conduct, ended = partial(self._conduct, graph, asked), partial(self._ended, graph, asked)
            graph.experiments.append(Experiment(state, conduct, ended))

    def _state(self, graph: Graph, asked: list[Question], allocation_of: AllocationOf) -> list[ByteRange]:
        context = self.context
        beside = other_threads() if context.settings.locate != "all" else []
        if beside:
            raise NotRerun(f"threads of the program may write meanwhile ({', '.join(beside)})")
        guards = list(context.allocator.guards.tenants.values())
        more = [guard.whole for buffer in guards for guard in guards_of(buffer, context.settings.near_guard)]
        more += [where for question in asked for where in question.where()]
        return state_within(graph, context.allocator, allocation_of, more, context.settings.locate_memory)

    def _conduct(self, graph: Graph, asked: list[Question], reruns: Reruns) -> None:
        stale = RangeSet.of(where for question in asked for where in question.where())
        outlasting = list(_outlasting(graph, self.context) - stale)
        reruns.run(())
        plain = reruns.read(outlasting)
        for question in asked:
            question.hidden = all(
                _alike(plain, reruns, fills, outlasting) for fills in (_zeros(question), _copies(question, reruns))
            )

    def _ended(self, graph: Graph, asked: list[Question], refused: str | None) -> None:
        if self._asked.get(graph.serial) is asked:
            del self._asked[graph.serial]
        if refused is not None:
            for question in asked:
                question.hidden = None
        self._answer(asked)

    def _answer(self, asked: list[Question]) -> None:
        raised: FindingsError | None = None
        with error_barrier("stale rows"):
            for question in asked:
                try:
                    question.answered(question.hidden)
                except FindingsError as error:
                    raised = raised or error
            if raised is not None:
                raise raised


def _zeros(question: Question) -> list[Fill]:
    return [Fill(where, b"\0") for where in question.where()]


def _copies(question: Question, reruns: Reruns) -> list[Fill]:
    """A refreshed row's values, which are valid wherever the graph uses them."""
    (row,) = reruns.read([question.rows.span(question.fresh, question.fresh)])
    return [Fill(where, row.tobytes()) for where in question.where()]


def _alike(plain: list[Bytes], reruns: Reruns, fills: list[Fill], ranges: list[ByteRange]) -> bool:
    """Whether a run with some values leaves the same bytes as one without."""
    reruns.run(fills)
    return all(map(np.array_equal, plain, reruns.read(ranges)))


def _outlasting(graph: Graph, context: Context) -> RangeSet:
    """Bytes that a graph may write and that can be read once it has run: not those of temporary tensors, which a later
    node reads and which have ended."""
    own = own_buffers(graph, context)
    gone = [buffer for buffer in own.values() if not buffer.alive]
    made = RangeSet.of(p.view.hull for _, p in graph.pointers() if p.may_write)
    ended = RangeSet.of(buffer.range for buffer in gone if _is_temporary(graph, buffer, context))
    for buffer in own.values():
        if buffer.alive:
            ended.discard(buffer.range)
    return made - ended


def _is_temporary(graph: Graph, buffer: Buffer, context: Context) -> bool:
    """Whether a tensor of the capture that has ended is written first and read after, by this graph alone."""
    others = (other for other in context.graphs.values() if other is not graph)
    if any(buffer.serial in other.inputs for other in others):
        return False
    reads = list(_reads(graph, buffer))
    return bool(reads) and not reads[0]


def _reads(graph: Graph, buffer: Buffer) -> Iterator[bool]:
    """Of each node that may read a buffer, in order, whether none has written it before."""
    written = False
    for node in graph.nodes:
        pointers = [p for p in node.launch.pointers if p.view.hull.overlaps(buffer.range)]
        if any(p.may_read for p in pointers):
            yield not written
        written = written or any(p.may_write for p in pointers)

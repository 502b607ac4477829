"""Which graphs two writes were for, of which one hides the other.

Used by `LostPreparations`, under the debugger's lock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from shadowgraph.checks.base import Context
from shadowgraph.checks.lost_preparation.calls import graph_of_call
from shadowgraph.checks.lost_preparation.facts import Known
from shadowgraph.checks.lost_preparation.pairing import Sites, told_apart
from shadowgraph.checks.lost_preparation.preparations import Preparations, Prepared
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import Launch

_AROUND = 1024  # by the clock, before a write: further ones are of another call


@dataclass(frozen=True, slots=True)
class Verdict:
    """How it is known that a write was lost, and the graph that the write over it was for."""

    known: Known
    other: Graph
    other_replay: int | None


class Intentions:
    """Judges pairs of writes.

    Parameters
    ----------
    log
        The writes.
    begun
        When replays began, by the clock, with the serials of their graphs.
    """

    def __init__(self, context: Context, log: Preparations, begun: Collection[tuple[int, int]]) -> None:
        self._context, self._log, self._begun, self._sites = context, log, begun, Sites()

    def feed(self, entry: Prepared, serial: int) -> None:
        """A replay, or a capture, has read a write."""
        for fed in self._sites.of(entry.write.launch):
            fed.graphs[serial] = fed.graphs.get(serial, 0) + 1

    def differ(self, entry: Prepared, launch: Launch, graph: Graph | None) -> bool:
        """Whether a launch that is about to overwrite a write seems to be for another graph.

        Parameters
        ----------
        graph
            The graph that the launch is declared to prepare.
        """
        if entry.meant is not None and graph is not None:
            return entry.meant != graph.serial
        return self._by_lines(entry.write.launch, launch) is not None

    def verdict(self, lost: Prepared, by: Prepared, graph: Graph) -> Verdict | None:
        """Whether a write was for the coming replay of a graph, and the one that hides it for another."""
        if lost.meant is not None and by.meant is not None:
            other = self._context.graphs.get(by.meant) if lost.meant == graph.serial != by.meant else None
            return Verdict(Known.DECLARED, other, by.replay) if other is not None else None
        if by.meant == graph.serial or lost.meant not in (None, graph.serial):
            return None
        read = lost.read_by_others(graph.serial) or by.reads(lost.ranges)
        if lost.constant or by.constant or read or not lost.sure or self.parted(lost, by):
            return None
        known, pair = Known.LINES, self._by_lines(lost.write.launch, by.write.launch)
        if pair is None:
            known, pair = Known.CALLS, self._by_calls(lost, by)
        if pair is None or pair[0] != graph.serial or by.meant not in (None, pair[1]):
            return None
        other = self._context.graphs.get(pair[1])
        if other is None:
            return None
        return Verdict(known, other, other.replays + (other.serial not in by.consumers))

    def parted(self, lost: Prepared, by: Prepared) -> bool:
        """Whether a replay came between two writes: the second may be of a step that needs the first no more."""
        return any(lost.order < order < by.order for order, _ in self._begun)

    def given_up(self, by: Prepared, graph: Graph) -> bool:
        """Whether the graph was prepared again behind a replay that came after a write: what was prepared before is
        of a step that did not come."""
        first = next((order for order, _ in self._begun if order > by.order), None)
        return first is not None and any(self._is_for(entry, graph) for entry in self._log.kept(first))

    def _is_for(self, entry: Prepared, graph: Graph) -> bool:
        if entry.meant is not None:
            return entry.meant == graph.serial
        return any(fed.only == graph.serial for fed in self._sites.of(entry.write.launch))

    def _by_lines(self, lost: Launch, by: Launch) -> tuple[int, int] | None:
        return told_apart(self._sites.of(lost), self._sites.of(by))

    def _by_calls(self, lost: Prepared, by: Prepared) -> tuple[int, int] | None:
        """The graphs that the calls which made two writes prepared, where these are two."""
        writes, replays = self._log.kept(lost.order - _AROUND), [order for order, _ in self._begun]
        first = graph_of_call(lost, writes, replays)
        second = graph_of_call(by, writes, replays) if first is not None else None
        return None if first is None or second is None or first == second else (first, second)

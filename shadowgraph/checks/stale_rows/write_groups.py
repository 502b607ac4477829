"""Where graphs read rows, and which graphs read the same written ones: the writes before their replays are one history.

Used by `WritePatterns`, under its lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shadowgraph.checks.row_epochs import Run
from shadowgraph.checks.stale_rows.static_inputs import Input, Story
from shadowgraph.graphs.observer.library import ROW, Words, words_of

_TRIED = 256  # patterns of a group that are learnt whether or not they come again
NO_WORDS, NO_VALUES = words_of(np.empty(0, ROW)), np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Runs of each buffer before a replay, by the buffer's serial; equal ones are one object."""

    runs: dict[int, list[Run]]


@dataclass(slots=True, eq=False)
class Group:
    """Graphs that read the same written buffers.

    Attributes
    ----------
    stories
        These buffers.
    inputs
        Rows that each graph reads of them.
    words, values
        Writes since the last replay of any of the graphs.
    since
        From when on these writes are all known, or negative where no earlier one was lost.
    learnt, met
        Patterns that were new, and those that were known.
    """

    stories: list[Story]
    inputs: dict[int, list[Input]]
    state: State
    words: Words = field(default_factory=lambda: NO_WORDS)
    values: Words = field(default_factory=lambda: NO_VALUES)
    since: float = -1.0
    learnt: int = 0
    met: int = 0

    def patience(self, most: int) -> int:
        """How many new patterns to learn in one look: next to none where hardly one comes again."""
        return most if self.learnt < _TRIED or self.met > self.learnt else 1

    def wait_for(self, words: Words, values: Words) -> None:
        """Add writes."""
        if len(self.values):
            words, values = np.concatenate([self.words, words]), np.concatenate([self.values, values])
        self.words, self.values = words, values

    def forget(self, state: State, since: float) -> None:
        """Nothing is known of the rows, and from `since` on all writes are."""
        self.state, self.words, self.values, self.since = state, NO_WORDS, NO_VALUES, since


class Spans:
    """Where graphs read rows, as spans that do not overlap.

    Attributes
    ----------
    starts, stops
        Of each span.
    groups
        Of the spans that were seen to be written.
    of_span, of_graph
        Index of the group of each span, -1 for none; by the graph's serial.
    """

    def __init__(self, inputs: Mapping[int, Sequence[Input]]) -> None:
        self._readers: dict[int, list[tuple[int, Input]]] = {}  # by the buffer's serial
        bounds: dict[int, tuple[int, int, Story]] = {}
        for graph, each in ((graph, each) for graph, read in inputs.items() for each in read):
            serial, rows = each.story.buffer.serial, each.rows
            if each.story.buffer.alive:
                first, last, _ = bounds.get(serial, (rows.start, rows.stop, None))
                bounds[serial] = min(first, rows.start), max(last, rows.stop), each.story
                self._readers.setdefault(serial, []).append((graph, each))
        self._held = _merged(bounds.values())
        self.starts = np.array([start for start, _, _ in self._held], np.uint64)
        self.stops = np.array([stop for _, stop, _ in self._held], np.uint64)
        self.groups: list[Group] = []
        self.of_graph: dict[int, int] = {}
        self.of_span = np.full(len(self._held), -1)

    def group(self, written: set[int], state: State) -> None:
        """Put graphs that read the same written spans into one group.

        Parameters
        ----------
        written
            First bytes of these spans.
        """
        self.groups, self.of_graph = [], {}
        for at, (start, _, stories) in enumerate(self._held):
            if start in written:
                self._add(at, stories, state)

    def _add(self, at: int, stories: list[Story], state: State) -> None:
        read = [reader for story in stories for reader in self._readers[story.buffer.serial]]
        into, *others = sorted({self.of_graph[graph] for graph, _ in read if graph in self.of_graph}) or [
            len(self.groups)
        ]
        if into == len(self.groups):
            self.groups.append(Group([], {}, state))
        group = self.groups[into]
        self.of_span[at] = into
        for other in others:  # which stays, with nothing in it
            merged, self.groups[other] = self.groups[other], Group([], {}, state)
            group.stories += merged.stories
            group.inputs |= merged.inputs
            self.of_graph.update(dict.fromkeys(merged.inputs, into))
            self.of_span[self.of_span == other] = into
        group.stories += stories
        for graph, each in read:
            group.inputs.setdefault(graph, []).append(each)
            self.of_graph[graph] = into


def _merged(spans: Iterable[tuple[int, int, Story]]) -> list[tuple[int, int, list[Story]]]:
    """Spans in order, those that overlap as one."""
    found: list[tuple[int, int, list[Story]]] = []
    for start, stop, story in sorted(spans, key=lambda span: span[:2]):
        if found and start < found[-1][1]:
            first, last, stories = found[-1]
            found[-1] = first, max(last, stop), [*stories, story]
        else:
            found.append((start, stop, [story]))
    return found

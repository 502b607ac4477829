"""Watched tensors: records every change of their values, bug or not.

`Monitor` calls the check like all others; `Debugger.watch` adds the watches.
"""

from __future__ import annotations

from collections.abc import Iterable

from shadowgraph.checks.base import Check, Checkpoint, Context
from shadowgraph.common.words import plural
from shadowgraph.engines.base import Evidence
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.tensor_changes import Change
from shadowgraph.tracking.writes import Write

LIMIT = 10_000


class Watch:
    """Handle that `Debugger.watch` returns; holds no reference to the tensor.

    Attributes
    ----------
    changes
        Changes of the tensor, oldest first, at most `LIMIT`; `dropped` counts the rest.
    """

    def __init__(self, name: str, buffer: Buffer, where: ByteRange) -> None:
        self.name, self.buffer, self.where = name, buffer, where
        self.changes: list[Change] = []
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<Watch of {self.name}: {plural(len(self.changes) + self.dropped, 'change')}>"

    def note(self, change: Change) -> None:
        if len(self.changes) < LIMIT:
            self.changes.append(change)
        else:
            self.dropped += 1


class Watches(Check):
    """Records every write that hits a watched range; across a replay also changes without a known writer."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.watches: list[Watch] = []
        self._hit: set[int] = set()  # watches hit by nodes of the running replay: their changes have a writer

    def parts(self, graph: Graph) -> Iterable[tuple[object, ByteRange]]:
        return [(watch, watch.where) for watch in self.watches if watch.buffer.alive]

    def owns(self, key: object) -> bool:
        return isinstance(key, Watch)

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        self._hit.clear()

    def changed(self, evidence: Evidence[object], checkpoint: Checkpoint) -> None:
        watch = evidence.subject
        assert isinstance(watch, Watch)
        if id(watch) not in self._hit:
            self._note(watch, None, Phase.REPLAY, checkpoint.graph, evidence.first, evidence.last)

    @property
    def wants_known_writes(self) -> bool:
        return bool(self.watches)

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        for watch in self.watches:
            parts = write.ranges.intersection(watch.where)
            if parts:
                if graph is not None:
                    self._hit.add(id(watch))
                self._note(watch, write, phase, graph, parts[0].start, parts[-1].stop - 1)

    def _note(
        self, watch: Watch, write: Write | None, phase: Phase | None, graph: Graph | None, first: int, last: int
    ) -> None:
        watch.note(
            Change(
                phase=phase,
                graph=graph.name if graph else None,
                replay=graph.replays if graph else None,
                writer=write.launch.name if write else None,
                node=write.node if write else None,
                stack=write.launch.stack if write else (),
                first=first - watch.where.start,
                last=last - watch.where.start,
            )
        )

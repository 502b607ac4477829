"""Rows of the check log and the launch log that a `Monitor` writes from its events.

In the thread of each event. Rows of launches, captures and replays take no lock; rows of checks are written under the
debugger's lock, and only for graphs of the host: a device writes those of its own graphs.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from shadowgraph.checks.base import Checkpoint, Context
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.engines.base import Evidence
from shadowgraph.graphs import launch_rows
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.check_log import RANGES, RECORD, UNDECIDED, WINDOW, CheckLog
from shadowgraph.model.graphs import Graph, Launch
from shadowgraph.model.guards import Guard
from shadowgraph.model.phases import Phase
from shadowgraph.monitor.recorder.recorder import recorder
from shadowgraph.tracking import launch_recording

_NAMED = 2048  # buffers that are named in the launch log


class Rows:
    """What one monitor notes. No method raises but for internal errors, which the event's barrier counts."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._by_host = not context.engine.asynchronous
        self._rows: dict[int, int | None] = {}  # row of the check log by the graph's serial
        self._log: CheckLog | None = None
        self._named: set[int] = set()
        self._noted: Launch | None = None

    # -- the launch log --------------------------------------------------------------------------------------------

    def capture_began(self, graph: Graph) -> None:
        """A capture begins."""
        self._revive()
        log = launch_recording.current
        if log is not None:
            log.graph(graph.serial, graph.name)
            log.capture(graph.serial, begins=True)
        if self._by_host:
            recorder.check_log()  # made by now, so that its absence says something

    def captured(self, graph: Graph) -> None:
        """A capture has ended."""
        log = launch_recording.current
        if log is not None:
            log.capture(graph.serial, begins=False)

    def name_buffers(self) -> None:
        """Name the guarded buffers, so that damage found after the process's death is theirs. Graphs were introduced
        just now, with the names of their buffers."""
        log, names = launch_recording.current, self._context.names
        if log is None:
            return
        for buffer in list(self._context.allocator.guards.tenants.values()):
            if len(self._named) < _NAMED and buffer.serial not in self._named:
                self._named.add(buffer.serial)
                log.buffer(buffer.start, buffer.nbytes, names.name_of(buffer)[0])

    def launch_begins(self, launch: Launch) -> None:
        """A launch of host code is about to run."""
        log = launch_recording.current
        if log is None:
            return
        self._noted = launch
        site = log.site(launch.stack[0].file, launch.stack[0].line, launch.stack[0].function) if launch.stack else 0
        pointers = [(each.view.hull.start, each.view.hull.nbytes) for each in launch.pointers]
        grid = cast(tuple[int, int, int], (*(launch.grid or ()), 1, 1, 1)[:3])
        log.launch(log.kernel(launch.name), site, 0, grid, pointers)

    def launch_ran(self, launch: Launch) -> None:
        """A launch has run, which may not have been announced before."""
        if self._noted is not launch:
            self.launch_begins(launch)
        self._noted = None

    # -- replays ---------------------------------------------------------------------------------------------------

    def replay_began(self, graph: Graph) -> None:
        """The check at a replay's begin is done, and its evidence dispatched; the replay begins."""
        if recorder.orphaned:
            self._revive()
        log = launch_recording.current
        if log is not None:
            log.replay(graph.serial, graph.replays, True)
        if self._by_host:
            checks, row = self._row(graph)
            if checks is not None and row is not None:
                checks.begun(row, graph.replays)

    def replay_ended(self, graph: Graph) -> None:
        """The check at a replay's end is done, and its evidence dispatched. Of a device's replays the check log has the
        end, as Python returns before it."""
        if self._by_host:
            log = launch_recording.current
            if log is not None:
                log.replay(graph.serial, graph.replays, False)
            checks, row = self._row(graph)
            if checks is not None and row is not None:
                checks.ended(row, graph.replays)

    def replay_failed(self, graph: Graph) -> None:
        """A replay has raised."""
        log = launch_recording.current
        if log is not None:
            log.replay(graph.serial, graph.replays, False, failed=True)

    def dropped(self, graph: Graph) -> None:
        """A graph is gone."""
        if self._rows.pop(graph.serial, None) is not None and self._log is not None:
            self._log.release(graph.serial)

    # -- damage ----------------------------------------------------------------------------------------------------

    def broken(self, evidence: Evidence[object], checkpoint: Checkpoint) -> None:
        """A check of the host has found a guard broken."""
        self.changed(evidence, checkpoint)

    def changed(self, evidence: Evidence[object], checkpoint: Checkpoint, damage: bool = True) -> None:
        """A check of the host has found bytes changed; `damage`: whether that is known to be damage."""
        if not self._by_host:
            return
        with error_barrier("check log"):
            self._changed(evidence, checkpoint, damage)

    def _changed(self, evidence: Evidence[object], checkpoint: Checkpoint, damage: bool) -> None:
        graph = checkpoint.graph
        checks, row = self._row(graph) if graph is not None else (recorder.check_log(), None)
        if checks is None:
            return
        tail = checkpoint.phase is Phase.REPLAY
        serial, replay = graph.serial if graph is not None else 0, checkpoint.replay or 0
        checks.record(record_of(evidence, serial, replay, tail, recorder.redacts, damage))
        if row is not None and replay and damage:
            checks.damaged(row, replay, tail)

    def name(self, buffer: Buffer) -> None:
        """Name a buffer with damage."""
        log = launch_recording.current
        if log is not None:
            log.buffer(buffer.start, buffer.nbytes, self._context.names.name_of(buffer)[0])

    # -- parts -----------------------------------------------------------------------------------------------------

    def _row(self, graph: Graph) -> tuple[CheckLog | None, int | None]:
        """This process's check log, and a graph's row in it."""
        row = self._rows.get(graph.serial)
        if row is None or self._log is None:
            self._log = recorder.check_log()
            row = self._rows[graph.serial] = self._log.claim(graph.serial) if self._log is not None else None
        return self._log, row

    def _revive(self) -> None:
        """In a forked child in which the debugger goes on: write logs of its own."""
        if recorder.orphaned:
            self._rows, self._log = {}, None
            self._named.clear()
            recorder.go_on()
            launch_rows.follow_log()
            log = launch_recording.current
            if log is not None:
                for graph in list(self._context.graphs.values()):
                    log.graph(graph.serial, graph.name)
                self.name_buffers()


def record_of(
    evidence: Evidence[object], graph: int, replay: int, tail: bool, redact: bool, damage: bool = True
) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Evidence as a record of the check log, an array of one."""
    made = np.zeros(1, RECORD)
    one = made[0]
    one["graph"], one["replay"] = graph, replay << 1 | tail
    one["truncated"], part = evidence.truncated, not isinstance(evidence.subject, Guard)
    one["is_part"] = UNDECIDED if part and not damage else part
    one["first"], one["last"], one["count"] = evidence.first, evidence.last, evidence.count
    one["window"], one["window_len"] = evidence.window, min(len(evidence.expected), WINDOW)
    one["ranges_listed"], one["ranges_total"] = min(len(evidence.ranges), RANGES), evidence.ranges_total
    pairs = [end for pair in evidence.ranges[:RANGES] for end in pair]
    one["ranges"][: len(pairs)] = pairs
    one["expected"][: one["window_len"]] = np.frombuffer(evidence.expected, np.uint8)[:WINDOW]
    if not redact:
        one["found"][: one["window_len"]] = np.frombuffer(evidence.found, np.uint8)[:WINDOW]
    return made

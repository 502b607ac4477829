"""Culprits from the launch log, for damage that is dated to the preparation of one replay whose launches passed
unobserved.

Called by `FindingPipeline`, in the thread of the event that led to the detection; takes no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from shadowgraph.checks.base import Checkpoint, Detection
from shadowgraph.model.findings import Culprit, Status
from shadowgraph.model.launch_log_reader import LaunchLogContents, LoggedLaunch, contents_of
from shadowgraph.model.launches import Launch, LaunchKind
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Frame
from shadowgraph.tracking import launch_recording

_HOST_CODE = frozenset((Phase.PREPARE, Phase.BETWEEN, Phase.STEP))
Operators = Callable[[int, int, ByteRange], Iterable[Launch]]  # before a replay, that may write into a range
Launches = Callable[[int, int], Iterable[LoggedLaunch]]  # before a replay, by the graph's serial and its number


def culprits_from(launches: Iterable[LoggedLaunch], ranges: Sequence[ByteRange]) -> tuple[Culprit, ...]:
    """The launches that were given a pointer into one of the ranges, each kernel and line once, the latest first.

    A launch's stores are not known, so that each is a candidate, also one that alone was given the ranges.

    Parameters
    ----------
    launches
        Oldest first, as the log has them.
    ranges
        A damaged buffer's own bytes: what runs past its end was given its start.
    """
    found: dict[tuple[str, object], Culprit] = {}
    for launch in reversed(list(launches)):
        key = launch.kernel, launch.site
        if key not in found and launch.kernel and _is_given(launch, ranges):
            found[key] = _culprit(launch)
    return tuple(found.values())


class LoggedPhases:
    """The launches that passed unobserved between the replay before a graph's replay and its begin, as this process's
    log has them: read once for all detections of one boundary, as many rules may break at one replay.

    The log has their addresses without sizes. An observed launch is a suspect by the accesses of its arguments, which
    the log does not have: one that only reads a buffer must not become a candidate here.
    """

    def __init__(self) -> None:
        self._order = 0
        self._log: LaunchLogContents | None = None
        self._known: dict[tuple[int, int], tuple[LoggedLaunch, ...]] = {}

    def at(self, checkpoint: Checkpoint) -> Launches:
        """What is known at a boundary, or is read when asked for."""
        if not checkpoint.order or checkpoint.order != self._order:  # one without a place in the order is by itself
            self._order, self._log, self._known = checkpoint.order, None, {}
        return self._before

    def _before(self, graph: int, replay: int) -> tuple[LoggedLaunch, ...]:
        key = graph, replay
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._read(graph, replay)
        return known

    def _read(self, graph: int, replay: int) -> tuple[LoggedLaunch, ...]:
        log = launch_recording.current
        if self._log is None and log is not None:
            self._log = contents_of(log.memory)
        launches = self._log.last_phase(graph, replay) if self._log is not None else ()
        return tuple(launch for launch in launches if not any(nbytes for _, nbytes in launch.pointers))


def with_logged_culprits(draft: Detection, launches: Launches, operators: Operators = lambda *_: ()) -> Detection:
    """A detection with the launches of the log that may have caused it, where it is dated to one preparation, or to the
    code between pieces of one step, in which no suspect was observed.

    Parameters
    ----------
    launches
        Those of the log: `LoggedPhases.at` its boundary.
    operators
        Those that the observer in C++ has noted, which the log has not.
    """
    if draft.located or (draft.culprits and draft.phase is not Phase.STEP):
        return draft
    where, logged = draft.buffer.range, list[Culprit]()
    for graph, replay in _replays_after(draft):
        logged += culprits_from(launches(graph, replay), (where,))
        logged += _culprits_of(operators(graph, replay, where))
    logged = list({(each.name, each.file, each.line): each for each in logged}.values())
    return replace(draft, logged=tuple(logged), key=draft.key or logged[0].name or "") if logged else draft


def _replays_after(draft: Detection) -> list[tuple[int, int]]:
    """The replays, by the graph's serial, that came after code that may have done it; of a step the latest first."""
    graph, replay = draft.graph, draft.replay
    if graph is None or replay is None or draft.phase not in _HOST_CODE:
        return []
    pieces = draft.checkpoint.pieces[1:] if draft.phase is Phase.STEP else ()
    return [(graph.serial, replay), *((piece.serial, number) for piece, number in reversed(pieces))]


def _culprits_of(operators: Iterable[Launch]) -> tuple[Culprit, ...]:
    """Each operator once, the latest first; no line is known of it."""
    names = dict.fromkeys(launch.name for launch in reversed(list(operators)))
    return tuple(Culprit(status=Status.CANDIDATE, kind=LaunchKind.ATEN, name=name) for name in names)


def _is_given(launch: LoggedLaunch, ranges: Sequence[ByteRange]) -> bool:
    """Whether a pointer leads into one of the ranges; of some, the log has the address alone."""
    return any(
        each.start < address + max(nbytes, 1) and address < each.stop
        for address, nbytes in launch.pointers
        for each in ranges
    )


def _culprit(launch: LoggedLaunch) -> Culprit:
    site = launch.site
    return Culprit(
        status=Status.CANDIDATE,
        name=launch.kernel,
        file=site.file if site is not None else None,
        line=site.line if site is not None else None,
        stack=(Frame(site.file, site.line, site.function),) if site is not None else (),
        grid=tuple(map(int, launch.grid)) if any(launch.grid) else None,
    )

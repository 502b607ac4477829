"""Patterns of writes that look like forgotten padding (SG103), in replays that passed unobserved.

In the steady state no dispatch mode sees what prepares a replay, and `StaleRows` rests. The observer in C++ notes
operators all the same: at each closer look the writes of the replays since the last one are judged by the rules of
SG103. Their bytes are gone by then, so that a suspicion is no finding, but a reason to observe in full
(`WritePatterns.stirs`): when the pattern comes again, `StaleRows` judges it with bytes, witnesses and date.

What follows from a replay's writes depends on them and on the rows' state before, and not on when they were. So each is
judged once and remembered: in a steady server nearly every replay is one look into a dictionary.

`Monitor` calls `begin` and `replayed` under the debugger's lock, `judge` in the replaying thread without it. `judge`
has a lock of its own, for which no thread waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import time

import numpy as np
import numpy.typing as npt

from shadowgraph.checks.row_epochs import Epochs, Run
from shadowgraph.checks.stale_rows.check import Situation, StaleRows
from shadowgraph.checks.stale_rows.row_writes import Places, Writes, patterns, times_of, writes_in
from shadowgraph.checks.stale_rows.rules import InputKey, key_of, suspects
from shadowgraph.checks.stale_rows.static_inputs import REBINDS, Input, Story, note
from shadowgraph.checks.stale_rows.write_groups import NO_WORDS, Group, Spans, State
from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.common.words import plural
from shadowgraph.graphs.observer.library import ROW, Words, words_of
from shadowgraph.graphs.observer.observer import OperatorObserver
from shadowgraph.graphs.observer.operators import operators_in
from shadowgraph.tracking.writes import write_of

KNOWN = 4096  # patterns that are remembered
LEARNT = 8  # patterns of a group judged anew in one look, at most; each takes about a millisecond
WAITING = 64  # replays that were looked at one by one, after which they are judged
OFTEN, IN_ALL = 8, 24  # reasons to observe that an input, and all of them, may give before they come ever more seldom
_REPLAYS = 4096
_PENDING = 4096  # writes that wait for the replay that they prepare
_OLD, _FRESH = 0, 1  # times: before the last replay that reads the buffer, and since


@dataclass(slots=True, eq=False)
class _Known:
    """What follows from a pattern: the state after it, and the inputs that are suspected.

    Attributes
    ----------
    looks
        In which it occurred.
    """

    after: State
    suspected: tuple[InputKey, ...]
    looks: int = 0


class WritePatterns:
    """Judges the writes that prepared replays which passed.

    Parameters
    ----------
    check
        Whose inputs and declarations count.
    observer
        Returns the observer in C++, or None.

    Attributes
    ----------
    stirs
        Reasons to observe in full so far.
    skipped
        Replays that were not judged: rows of the observer were lost, or too many patterns were new at once.
    """

    def __init__(self, check: StaleRows, observer: Callable[[], OperatorObserver | None]) -> None:
        self._check, self._observer = check, observer
        self._lock = fork_safe(threading.Lock())
        self._replays: deque[tuple[int, float]] = deque(maxlen=_REPLAYS)  # a graph's serial, and until when it read
        self._begun, self._seen = 1, 0  # how often a steady state began, and the number of the one that is known here
        self._after = 0  # sequence number of the latest row that was read
        self._version, self._situation = (-1, -1), Situation({}, frozenset())
        self._written: set[int] = set()
        self._nothing = State({})
        self._spans = Spans({})
        self._states: dict[object, State] = {}
        self._memory: dict[tuple[State, int, int], _Known] = {}
        self._reasons: dict[InputKey, int] = {}
        self.stirs = self.skipped = self._learnt = self._asked = 0

    @property
    def active(self) -> bool:
        """Whether replays that pass are judged."""
        observer = self._observer()
        return observer is not None and observer.active

    @property
    def due(self) -> bool:
        """Whether many replays wait that did not pass, but were prepared unobserved."""
        return len(self._replays) >= WAITING

    def begin(self) -> None:
        """Operators pass unobserved from here on."""
        observer = self._observer()
        self._replays.clear()
        self._after = observer.latest_sequence() if observer is not None else 0
        self._begun += 1

    def replayed(self, graph: int, time: float) -> None:
        """A replay of a graph read its inputs; `time` is not before that, and before the next one is prepared."""
        self._replays.append((graph, time))

    def judge(self) -> None:
        """Judge the replays since the last time."""
        observer = self._observer()
        if observer is None or not observer.active or not self._lock.acquire(blocking=False):
            return
        try:
            with error_barrier("patterns of writes"):
                self._look(observer)
        finally:
            self._lock.release()

    def sentence(self) -> str | None:
        """What came of it, for the report; None for nothing."""
        said = []
        if self.stirs:
            said.append(
                f"rows looked stale (SG103) in replays that passed unobserved, {plural(self.stirs, 'time')}; the host "
                "was observed after that"
            )
        if self.skipped:
            said.append(f"{plural(self.skipped, 'replay')} that passed could not be judged for SG103")
        return "; ".join(said) or None

    # -- one look ----------------------------------------------------------------------------------------------

    def _look(self, observer: OperatorObserver) -> None:
        begun, seen, self._seen = self._begun, self._seen, 0  # until this has come to its end
        after, self._after = self._after, observer.latest_sequence()
        replays = [self._replays.popleft() for _ in range(len(self._replays))]
        rows, whole = observer.rows_between(after, self._after)
        words = words_of(rows)
        since = -1.0 if whole else float(times_of(words[:1])[0]) if len(words) else time()
        if seen != begun or not whole:
            for group in self._spans.groups:
                group.forget(self._nothing, since)
        words, writes = self._writes(words, since)
        found = dict[int, _Known]()
        for number, group in enumerate(self._spans.groups):
            self._learnt = 0
            mine = np.flatnonzero(self._spans.of_span[writes.span] == number)
            group.wait_for(np.take(words, writes.row[mine], axis=0), writes.value[mine])
            theirs = [each for each in replays if self._spans.of_graph.get(each[0]) == number]
            self._judge_group(observer, group, theirs, found)
        self._stir(found.values())
        self._seen = begun

    def _writes(self, words: Words, since: float) -> tuple[Words, Writes]:
        """The writes into inputs, with the rows that they are in. Where graphs have come or gone, or an input was never
        seen to be written before, groups are made anew, and rows that waited for a replay are sorted again."""
        before = self._spans.groups
        version = self._check.version  # before the situation, which may change meanwhile
        if version != self._version:
            if version[0] != self._version[0]:
                self._spans, self._written = Spans(self._check.inputs()), set()
                words = _joined(before, words)
            self._version, self._situation = version, self._check.situation()
            self._forget()
        writes = writes_in(words, self._spans.starts, self._spans.stops)
        hit = set(self._spans.starts[np.unique(writes.span)].tolist())
        if hit <= self._written:
            return words, writes
        if self._spans.groups is before:
            words = _joined(before, words)
        self._written |= hit
        self._spans.group(self._written, self._nothing)
        self._forget()
        since = max([since, *(group.since for group in before)])
        for group in self._spans.groups:
            group.forget(self._nothing, since)
        return words, writes_in(words, self._spans.starts, self._spans.stops)

    def _forget(self) -> None:
        self._memory.clear()
        self._states.clear()

    def _judge_group(
        self, observer: OperatorObserver, group: Group, replays: Sequence[tuple[int, float]], found: dict[int, _Known]
    ) -> None:
        """Judge replays in order, and keep the writes after them."""
        ends = np.maximum.accumulate(np.array([time for _, time in replays], np.float64))
        replay = np.maximum.accumulate(np.searchsorted(ends, times_of(group.words), "left"))
        numbers = patterns(group.values, replay, len(replays))
        first = _first_known(group, ends)
        self.skipped += first
        state = group.state
        for at in range(first, len(replays)):
            key = state, replays[at][0], numbers[at]
            known = self._memory.get(key)
            if known is not None:
                group.met += 1
            elif self._learnt < group.patience(LEARNT):
                known = self._learn(observer, group, key, _of(group.words, replay, at))
                group.learnt += 1
            if known is None:
                self.skipped += 1
                state = self._nothing
                continue
            state = known.after
            if known.suspected:
                found[id(known)] = known
        left = int(np.searchsorted(replay, len(replays)))
        group.state, group.words, group.values = state, group.words[left:].copy(), group.values[left:].copy()
        if len(group.values) > _PENDING:
            group.forget(self._nothing, 0.0)

    def _stir(self, found: Iterable[_Known]) -> None:
        """Ask for a look in full: at once for each pattern, and ever more seldom for one, or for an input, that goes on
        to be suspected; in a program with a great many of them, for any."""
        stirs = False
        for known in found:
            known.looks += 1
            if known.looks.bit_count() == 1:
                for key in known.suspected:
                    reasons = self._reasons[key] = self._reasons.get(key, 0) + 1
                    stirs |= reasons <= OFTEN or reasons.bit_count() == 1
        self._asked += stirs
        self.stirs += stirs and (self._asked <= IN_ALL or self._asked.bit_count() == 1)
        if len(self._reasons) > KNOWN:
            self._reasons.clear()

    # -- one pattern -------------------------------------------------------------------------------------------

    def _learn(self, observer: OperatorObserver, group: Group, key: tuple[State, int, int], words: Words) -> _Known:
        """Judge a pattern that is not known yet, by its rows."""
        self._learnt += 1
        if len(self._memory) >= KNOWN:
            self._forget()
        state, serial, _ = key
        stories = {each.buffer.serial: _copy(each, state) for each in group.stories}
        for ran in operators_in(words.reshape(-1).view(ROW), observer.name_of):
            if not ran.launch.name.startswith(REBINDS):
                write = write_of(ran.launch, None)
                for story in stories.values():
                    note(story, write, _FRESH)
        inputs = [Input(each.rows, stories[each.story.buffer.serial]) for each in group.inputs[serial]]
        situation = self._situation
        suspected = [key_of(each.input) for each in suspects(inputs, situation.declared, _FRESH, situation.masks)]
        read = {key_of(each)[0] for each in inputs}
        after = {
            buffer: _aged(story.epochs.runs) if buffer in read else story.epochs.runs
            for buffer, story in stories.items()
            if story.epochs.runs
        }
        known = self._memory[key] = _Known(self._state(after), tuple(suspected))
        return known

    def _state(self, runs: dict[int, list[Run]]) -> State:
        """The one object for a state; writes count only as far as they are told apart."""
        facts = []
        for buffer, each in sorted(runs.items()):
            writers: dict[int, int] = {}
            facts.append(
                (buffer, *((*run[:3], writers.setdefault(id(run.write), len(writers)), *run[4:]) for run in each))
            )
        return self._states.setdefault(tuple(facts), State(runs)) if facts else self._nothing


def _joined(groups: Iterable[Group], words: Words) -> Words:
    """Rows that wait for a replay, in front of others."""
    waited = np.concatenate([NO_WORDS, *(group.words for group in groups)])
    return np.concatenate([waited[np.unique(waited[:, 0], return_index=True)[1]], words])


def _first_known(group: Group, ends: npt.NDArray[np.float64]) -> int:
    """Index of the first replay of which all writes are known: the second one to end since they are."""
    if group.since < 0:
        return 0
    first = int(np.searchsorted(ends, group.since, "left")) + 1
    if first <= len(ends):
        group.since = -1.0
    return min(first, len(ends))


def _of(words: Words, replay: Places, at: int) -> Words:
    """The rows of one replay, each once."""
    first, last = np.searchsorted(replay, [at, at + 1])
    mine = words[first:last]
    return mine[np.flatnonzero(np.diff(mine[:, 0], prepend=np.uint64(0)))]


def _copy(story: Story, state: State) -> Story:
    """A buffer's history that ends in a state."""
    epochs = Epochs()
    epochs.runs, epochs.last = state.runs.get(story.buffer.serial, []), _OLD
    return Story(story.buffer, epochs, story.readers, story.made)


def _aged(runs: Sequence[Run]) -> list[Run]:
    """Runs after a replay that has read them: of each it counts whether the rows hold values."""
    found: list[Run] = []
    for run in runs:
        held = run.sure and not run.constant
        if found and found[-1].stop == run.start and found[-1].sure is held:
            found[-1] = found[-1]._replace(stop=run.stop)
        else:
            found.append(Run(run.start, run.stop, _OLD, None, held, False))
    return found

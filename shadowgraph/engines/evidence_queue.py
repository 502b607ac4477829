"""Checks and reads in flight on a device, and the evidence that arrived for them.

The engine enters what it launches and takes what is finished; nothing here waits or launches. The caller holds the
engine's lock, except for `idle`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from shadowgraph.engines.base import Evidence, NodeCheck, Result
from shadowgraph.engines.copies import Fetch
from shadowgraph.engines.device import Device
from shadowgraph.engines.ring import SLOTS, CheckMemory, RingReader
from shadowgraph.model.guards import Guard
from shadowgraph.model.ranges import ByteRange

Parts = Sequence[tuple[object, ByteRange]]

# A launched check not yet seen as done: tag, guards, parts, and the device memory that it reads.
_Pending = tuple[object, Sequence[Guard], Parts, object]
_Found = list[tuple[tuple[int, int], Evidence[object]]]  # for one check: guards before parts, each with its index


class EvidenceQueue:
    """Checks by their serial, each with a slot of its own while it is pending, and copies to the host.

    Parameters
    ----------
    listed
        The guard that check nodes compare at a slot, which holds an address.
    shadowed
        The key of a range that check nodes compare, by its number.
    """

    def __init__(
        self,
        device: Device,
        memory: CheckMemory,
        listed: Callable[[int, int], Guard | None] = lambda slot, address: None,
        shadowed: Callable[[int], object | None] = lambda number: None,
    ) -> None:
        self._device, self._done, self._listed, self._shadowed = device, memory.done, listed, shadowed
        self._reader = RingReader(memory.records)
        self._arrived = self._reader.arrival()
        self._serial = 0
        self._slots: set[int] = set()
        self._left_out = 0
        self._pending: dict[int, _Pending] = {}
        self._found: dict[int, _Found] = {}  # evidence that has arrived, by pending check
        self._of_nodes: list[Result] = []  # evidence of check nodes that has arrived
        self._fetches: deque[Fetch] = deque()

    @property
    def dropped(self) -> int:
        """Number of records overwritten before the host read them, plus checks that found no slot, plus evidence on
        guards and ranges that are no longer known."""
        return self._reader.dropped + self._left_out

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight; needs no lock."""
        return not self._pending and not self._fetches

    def arrival(self) -> Callable[[], bool]:
        """A function that tells whether a record has arrived; it needs no lock."""
        return self._reader.arrival()

    @property
    def unfinished(self) -> bool:
        """Whether a check is not finished on the device."""
        return any(self._done[serial % SLOTS] != serial for serial in self._pending)

    def enter(self, tag: object, guards: Sequence[Guard], parts: Parts, memory: object) -> int | None:
        """Enter a check that is about to be launched, with the device memory that it reads; returns its serial. None
        when all slots are taken: the check is skipped, and counted."""
        slots, serial = self._slots, self._serial % 0xFFFFFFFF + 1
        if serial % SLOTS in slots:
            if len(slots) == SLOTS:
                self._left_out += 1
                return None
            while serial % SLOTS in slots:
                serial = serial % 0xFFFFFFFF + 1
        self._serial = serial
        slots.add(serial % SLOTS)
        self._pending[serial] = tag, guards, parts, memory
        return serial

    def withdraw(self, serial: int) -> None:
        """Remove a check whose launch was refused: no result will come."""
        del self._pending[serial]
        self._slots.discard(serial % SLOTS)

    def add_fetch(self, fetch: Fetch) -> None:
        """Enter queued copies to the host."""
        self._fetches.append(fetch)

    def take(self, everything: bool, lost: bool) -> list[Result]:
        """Remove what is finished; the results of checks come before those of fetches.

        Parameters
        ----------
        everything
            Take every finished check, not only those up to the first unfinished one.
        lost
            The device is lost: no check will finish any more, and evidence that reached the host in time still counts.
        """
        if lost:
            self._fetches.clear()
        finished = list(self._pending) if lost else self._finished(everything)
        if self._arrived():
            self._take_evidence()
        results, self._of_nodes = self._of_nodes, []
        for serial in finished:
            tag = self._pending.pop(serial)[0]
            self._slots.discard(serial % SLOTS)
            if serial in self._found:
                results.append(_result(tag, self._found.pop(serial)))
        while self._fetches and self._fetches[0].arrived(self._device):
            results.append(self._fetches.popleft().result())
        return results

    def _finished(self, everything: bool) -> list[int]:
        """Serials of finished checks, oldest first: up to the first unfinished one, or, after a wait that may have
        covered one stream only, of `everything` that is finished."""
        finished, done = [], self._done
        for serial in self._pending:
            if done[serial % SLOTS] == serial:
                finished.append(serial)
            elif not everything:
                break
        return finished

    def _take_evidence(self) -> None:
        """Assign arrived records to their checks, including checks not yet seen as done."""
        for record in self._reader.take():
            if record["graph"]:
                self._take_from_node(record)
                continue
            serial = int(record["check"])
            pending = self._pending.get(serial)
            if pending is not None:
                _, guards, parts, _ = pending
                is_part, index = int(record["is_part"]), int(record["index"])
                subject: object = parts[index][0] if is_part else guards[index]
                self._found.setdefault(serial, []).append(((is_part, index), _evidence(record, subject)))

    def _take_from_node(self, record: np.void) -> None:
        index = int(record["index"])
        subject = self._shadowed(index) if record["is_part"] else self._listed(index, int(record["first"]))
        if subject is None:
            self._left_out += 1
            return
        replay = int(record["replay"])
        tag = NodeCheck(int(record["graph"]), replay >> 1, bool(replay & 1))
        self._of_nodes.append(Result(tag, (_evidence(record, subject),)))


def _result(tag: object, found: _Found) -> Result:
    """The result of a check, with evidence in a fixed order: warps report in any order."""
    return Result(tag, tuple(evidence for _, evidence in sorted(found, key=lambda pair: pair[0])))


def _evidence(record: np.void, subject: object) -> Evidence[object]:
    length, listed = int(record["window_len"]), int(record["ranges_listed"])
    pairs = record["ranges"][: 2 * listed].reshape(-1, 2)
    return Evidence(
        subject=subject,
        first=int(record["first"]),
        last=int(record["last"]),
        count=int(record["count"]),
        ranges=tuple((int(a), int(b)) for a, b in pairs),
        ranges_total=int(record["ranges_total"]),
        window=int(record["window"]),
        expected=record["expected"][:length].tobytes(),
        found=record["found"][:length].tobytes(),
        truncated=bool(record["truncated"]),
    )

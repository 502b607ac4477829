"""The GPU engine: one launch for each check, results through pinned memory, no synchronisation unless requested.

Any thread; the engine's lock protects checks in flight and their tables. Waits run without it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from shadowgraph.engines import copies
from shadowgraph.engines.base import Fetching, Mirror, NodePart, Result, Shadow
from shadowgraph.engines.canary_stream import CanaryStream
from shadowgraph.engines.check_launcher import COMPARE, COPY, GUARDS_ONLY, CheckLauncher
from shadowgraph.engines.cupy_shadow import CupyShadow, shadow_of
from shadowgraph.engines.device import Device
from shadowgraph.engines.evidence_queue import EvidenceQueue, Parts
from shadowgraph.engines.graph_shadows import GraphShadows
from shadowgraph.engines.graph_watches import GraphWatches
from shadowgraph.engines.kernels import kernels_of
from shadowgraph.engines.listed_guards import ListedGuards
from shadowgraph.engines.losses import is_device_loss
from shadowgraph.engines.mirror import MirrorRing, NoCopy
from shadowgraph.engines.ring import CheckMemory
from shadowgraph.model.check_log import CheckLog
from shadowgraph.model.guards import Guard
from shadowgraph.model.host_copies import HostBlock
from shadowgraph.model.ranges import ByteRange

_POLL, _PATIENCE = 50e-6, 10.0  # seconds; for streams on which no event may be recorded


class _Queued:
    """Copies to the host that an engine has queued."""

    def __init__(self, engine: CupyEngine, queued: copies.Fetch) -> None:
        self._engine, self._fetch = engine, queued

    def passed(self) -> bool:
        return self._engine.passed(self._fetch)


class CupyEngine:
    """Checks on one CUDA device, by default the current one. Thread-safe.

    The constructor compiles kernels, so create it before any capture begins. Canary positions are device addresses.

    Parameters
    ----------
    expandable
        Whether torch's allocator uses expandable segments.
    log
        Where checks write what they find, for the life of the process; anonymous memory by default.

    Attributes
    ----------
    unmappable
        Number of ranges that are not compared because their memory may be unmapped.
    of_host
        Addresses of ranges that are not compared because they lie in memory of the host.
    log_is_mapped
        Whether the device writes into `log`; else into pinned memory of the engine.
    device
        The device of this engine; `probe_function` is the kernel of probed replays on it.
    watches, listed, shadows
        Graphs that carry checks as nodes, the guards that these compare, and the ranges of each.

    Raises
    ------
    MissingPackageError
        Without a cupy that fits this CUDA.
    """

    origin = 0
    asynchronous = True
    keeps = True

    def __init__(self, device: int | None = None, expandable: bool = False, log: CheckLog | None = None) -> None:
        index = torch.cuda.current_device() if device is None else device
        self.device = Device(index, expandable)
        self._lock = threading.RLock()
        self.unmappable, self.of_host = 0, set[int]()
        self._stale: set[int] = set()  # shadows whose last copy was skipped
        self.lost: str | None = None
        kernels = kernels_of(index)
        self.probe_function = kernels.probe
        self._memory = memory = CheckMemory(self.device, log if log is not None else CheckLog.anonymous())
        self.log_is_mapped = memory.is_mapped
        self._launcher = CheckLauncher(self.device, kernels.check_step, memory.addresses)
        self._canaries = CanaryStream(self.device, kernels.arm, kernels.arm_many, memory.table, memory.kept)
        self._mirrors = MirrorRing(self.device, kernels.mirror)
        self.listed = ListedGuards(self.device, kernels)
        self.watches = GraphWatches(self.device, kernels.graph_check, memory, self.listed)
        self.shadows = GraphShadows(self.device, kernels, self.watches.address_of)
        self._queue = EvidenceQueue(self.device, memory, self.listed.guard_of, self._part_of)
        self._arrived = self._queue.arrival()

    @property
    def dropped(self) -> int:
        """Number of records overwritten before the host read them, plus checks that found no slot."""
        return self._queue.dropped

    def write_canaries(self, ranges: Sequence[ByteRange], here: bool = False) -> None:
        """Write the canary over ranges, in one launch and ordered before every later check; or, with `here`, on the
        current stream, and nothing while that stream captures."""
        if here:
            if not self.device.captures:
                self._canaries.write_here(ranges)
            return
        self._canaries.write(ranges)
        # Else a canary could overwrite the damage of a later write on this stream. A stream that captures must not wait
        # for another one; its replay begins with a check.
        if not self.device.captures:
            self._canaries.let_wait(self.device.raw_stream())

    def order_canaries(self) -> None:
        """Order later canaries behind the work queued on the current stream, such as the last check of a guard; a
        stream that captures has queued nothing."""
        if not self.device.captures:
            self._canaries.wait_for_current()

    def list_guards(self, guards: Sequence[Guard]) -> None:
        """Let check nodes compare these guards, and no others, from about now on."""
        if guards is not self.listed.guards:
            self._while_alive(lambda: self.listed.show(guards))

    def withdraw_guards(self, starts: Sequence[int]) -> None:
        """Let no check node compare guards that begin there: work that is queued from now on may change them."""
        self._while_alive(lambda: self._withdraw(starts))

    def list_shadows(self, graph: int, parts: Sequence[NodePart]) -> None:
        """Let the check nodes of a graph compare these ranges across each replay, in order with the current stream."""
        self._while_alive(lambda: self._ordered(self.shadows.show(graph, parts)))

    def _is_of_host(self, where: ByteRange) -> bool:
        found = bool(where.nbytes) and self.device.lies_on_host(where.start)
        if found:
            self.of_host.add(where.start)
        return found

    def withdraw_shadows(self, buffer: int) -> None:
        """Let no check node read the bytes of a buffer: work that is queued from now on may change them."""
        if buffer in self.shadows.of_buffers:  # listed and freed under one lock
            self._while_alive(lambda: self._ordered(self.shadows.withdraw(buffer)))

    def clear_shadows(self) -> None:
        """Let no check node compare a range."""
        self._while_alive(self.shadows.clear)

    def _part_of(self, id: int) -> object | None:
        part, rows = self.shadows.part_of(id)  # of a lost device, too: that is when it is asked
        if rows is not None:
            self._while_alive(lambda: self.shadows.empty(rows))
        return part.key if part is not None else None

    @property
    def checked_replays(self) -> int:
        return self._memory.log.checked

    def pause(self, paused: bool) -> None:
        """Let check nodes count replays only, or compare again; in order with the current stream."""
        self._while_alive(lambda: self._pause(paused))

    def _withdraw(self, starts: Sequence[int]) -> None:
        self._ordered(self.listed.withdraw(starts))

    def _ordered(self, changed: bool) -> None:
        """Order the current stream behind a change of what check nodes read."""
        if changed:
            self._order_here()

    def _pause(self, paused: bool) -> None:
        if paused and not self.device.captures:  # replays that are queued here are compared still
            self._canaries.wait_for_current()
        self.listed.pause(paused)
        self._order_here()

    def _order_here(self) -> None:
        """Order the current stream behind the stream of canaries."""
        if not self.device.captures:
            self._canaries.mark()
            self._canaries.let_wait(self.device.raw_stream())

    def _while_alive(self, work: Callable[[], None]) -> None:
        """Do what a lost device does not need."""
        if self.lost is not None:
            return
        try:
            work()
        except Exception as error:
            if not is_device_loss(error):
                raise
            self.lost = str(error).split("\n", 1)[0]

    def arrival(self) -> Callable[[], bool]:
        """A function that tells whether evidence has arrived; it takes no lock."""
        return self._queue.arrival()

    def shadow(self, parts: Parts) -> CupyShadow:
        """Allocate shadow copies of ranges; the host waits briefly, so ask once for a set of ranges.

        Ranges in memory that may be unmapped, or of the host, are left out and counted: a check would read them at each
        replay.
        """
        of_device = [(key, where) for key, where in parts if not self._is_of_host(where)]
        kept = [pair for pair in of_device if not pair[1].nbytes or not self.device.may_be_unmapped(pair[1].start)]
        self.unmappable += len(of_device) - len(kept)
        return shadow_of(self.device, tuple(kept))

    def check(
        self,
        tag: object,
        guards: Sequence[Guard],
        take: Shadow | None = None,
        compare: Shadow | None = None,
        in_full: bool = False,
    ) -> None:
        """Launch one check on the current stream; nothing while that stream captures."""
        context, stream = self.device.context, self.device.raw_stream()
        entered = context.enter()
        try:
            if not context.captures(stream):
                self._check(tag, guards, take, compare, in_full, stream)
        finally:
            context.leave(entered)

    def _check(
        self,
        tag: object,
        guards: Sequence[Guard],
        take: Shadow | None,
        compare: Shadow | None,
        in_full: bool,
        stream: int,
    ) -> None:
        """`check`, with the context current and on a stream that does not capture."""
        with self._lock:
            mode, shadow = self._work(take, compare)
            self.device.note_stream()
            if stream not in self._canaries.ordered:
                self._canaries.let_wait(stream)
            prepared = self._launcher.prepared(mode, guards, shadow)
            if not prepared.grid:
                return
            parts = shadow.parts if mode == COMPARE and shadow is not None else ()
            serial = self._queue.enter(tag, guards, parts, (prepared.table, shadow))
            if mode == COPY:
                (self._stale.add if serial is None else self._stale.discard)(id(shadow))
            if serial is None:
                return
            try:
                self._launcher.launch(prepared, serial, stream, in_full)
            except BaseException:  # refused
                self._queue.withdraw(serial)
                raise

    def _work(self, take: Shadow | None, compare: Shadow | None) -> tuple[int, CupyShadow | None]:
        """The mode of a check and its shadow; none without parts, or to compare with where the copy was skipped."""
        shadow: Any = take if take is not None else compare
        if shadow is None or not shadow.chunk_count or (take is None and id(shadow) in self._stale):
            return GUARDS_ONLY, None
        return (COPY if take is not None else COMPARE), shadow

    def fetch(self, tag: object, parts: Parts) -> Fetching | None:
        """Queue copies into one block of pinned memory on the current stream; nothing while that stream captures, or
        where some memory is not mapped any more."""
        if not any(where.nbytes for _, where in parts) or self.device.captures:
            return None
        with self._lock:
            try:
                queued = copies.fetched(self.device, tag, parts)
            except LookupError:
                return None
            self._queue.add_fetch(queued)
        return _Queued(self, queued)

    def host_block(self, address: int) -> HostBlock | None:
        """What the driver knows of an address of the host; None for memory of a device, and once the device is
        lost."""
        if self.lost is not None:
            return None
        with self.device.context.current():
            return self.device.context.host_block(address)

    def passed(self, queued: copies.Fetch) -> bool:
        """Whether copies to the host have been made; on a lost device none is pending."""
        with self._lock:
            return self.lost is not None or queued.passed(self.device)

    def read(self, where: ByteRange) -> bytes:
        """Read a range behind the work queued on the current stream; waits for it."""
        return copies.read(self.device, where)

    def read_many(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Read ranges behind the work queued on the current stream, into one pinned block; waits once. While that
        stream captures, the copies run on another one, unordered with its work."""
        return copies.read_many(self.device, ranges)

    def mirror(self, ranges: Sequence[ByteRange]) -> Mirror:
        """Queue copies into a ring of pinned memory, in one launch; none while the current stream captures."""
        return NoCopy() if self.device.captures else self._mirrors.copy(ranges)

    def lose(self, reason: str) -> None:
        """Mark the device as lost: no more waits; the next `poll` returns the results that have arrived."""
        self.lost = self.lost or reason

    def poll(self, wait: bool = False, here: bool = False) -> list[Result]:
        """Results of finished checks, in order of submission; with `wait` of all checks, or with `here` of those on the
        current stream. While a capture runs, a wait for other streams would invalidate it, and is left out."""
        if self._queue.idle and not self._arrived() and not (wait and self.watches.live):
            return []
        if wait and self.lost is None and not self.device.captures:
            self._wait(here)
        with self._lock:
            return self._queue.take(wait, self.lost is not None)

    def _wait(self, here: bool) -> None:
        """Wait for the checks of the current stream, or of all streams where possible."""
        try:
            if here:
                self.device.wait_here()
                return
            self.device.wait()
            deadline = time.monotonic() + _PATIENCE
            while self._unfinished() and time.monotonic() < deadline:
                time.sleep(_POLL)
                self._canaries.check_alive()  # raises if the context is dead
        except Exception as error:
            if not is_device_loss(error):
                raise
            self.lost = str(error).split("\n", 1)[0]

    def _unfinished(self) -> bool:
        """Whether checks still run on streams that `Device.wait` left out: foreign ones, or because of a capture."""
        with self._lock:
            return self._queue.unfinished

"""Launch arguments copied to host memory just before each launch, and read when a launch has killed the device.

`Monitor` calls `note` from `launch_begins`, in the launching thread without the debugger's lock; `examine` and
`launches` run after the device is lost and read host memory only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from shadowgraph.checks.base import Checkpoint, Context
from shadowgraph.checks.invariants.indices import Indices
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.engines.base import LARGEST_COPY, RANGES_COPIED
from shadowgraph.localize.flight_recorder import FlightRecorder, Given
from shadowgraph.localize.index_asserts.explain import asserted_index, source_copied
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.launch_arguments import AssertedIndex, LastLaunch, LaunchArgument
from shadowgraph.model.launches import IndexRule, Launch, Pointer
from shadowgraph.model.views import TensorView, overlaps

_LAUNCHES = 3  # launches shown, of those that had begun
_SHOWN = 1024  # bytes shown of each argument
_INTEGERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}


class CrashRecorder:
    """Copies small integer arguments to host memory, in stream order.

    Parameters
    ----------
    find_name
        Searches a name for a buffer without one.
    """

    def __init__(
        self, context: Context, journal: FlightRecorder, indices: Indices, find_name: Callable[[Buffer], None]
    ) -> None:
        self._context, self._journal, self._indices, self._find_name = context, journal, indices, find_name
        self._asserted: list[tuple[Launch, AssertedIndex | None]] = []  # for the launches already shown
        self._unseen: tuple[Launch, ...] = ()  # the latest operators that passed unseen, oldest first

    def note(self, launch: Launch, rules: tuple[IndexRule, ...], checkpoint: Checkpoint) -> None:
        """Submit copies of the indices and of the small integer arguments of a launch that is about to run."""
        device = self._context.allocator.device
        copied: list[tuple[str, TensorView]] = []
        if rules:
            rules, copied = _on_device(rules, device)
        places = [view.hull for _, view in copied]
        for pointer in launch.pointers:
            view = pointer.view
            if view.dtype in _INTEGERS and view.device == device:  # on another device our kernel cannot read it
                hull = view.hull
                if 0 < hull.stop - hull.start <= LARGEST_COPY and hull not in places:
                    copied.append((pointer.argument, view))
                    places.append(hull)
        if copied:
            mirror = self._context.engine.mirror(places[:RANGES_COPIED])
            journal, kept = self._journal, tuple(copied[:RANGES_COPIED])
            journal.given.append(Given(launch, rules, kept, mirror, checkpoint, journal.unseen))

    def examine(self) -> None:
        """Report the first begun launch that was given an index out of range, and keep the latest operators that passed
        unseen; does not touch the device."""
        with error_barrier("operators that passed"):
            self._unseen = self._passed_unseen()
        for given in list(self._journal.given):
            copies = given.mirror.read()
            for rule in given.rules if copies is not None else ():
                with error_barrier("indices of a launch"):
                    data = _copy_of(given, rule.index, copies or [])
                    if data is not None and self._indices.judge(given.launch, rule, data, given.checkpoint):
                        return

    def launches(self) -> tuple[LastLaunch, ...]:
        """The last launches that had begun, latest first; does not touch the device."""
        found = [self._without_values(launch) for launch in reversed(self._unseen)]
        for given in reversed(self._journal.given):
            if len(found) >= _LAUNCHES:
                break
            copies = given.mirror.read()
            if copies is not None:
                frame = given.launch.stack[0] if given.launch.stack else None
                values = tuple(
                    LaunchArgument(name, self._owner(view), view.dtype, view.shape, data[:_SHOWN])
                    for (name, view), data in zip(given.copied, copies, strict=True)
                )
                file, line = (frame.file, frame.line) if frame is not None else (None, None)
                asserted, passed = self._asserted_by(given, copies), self._journal.unseen - given.passed
                found.append(LastLaunch(given.launch.name, file, line, values, asserted, passed))
        return tuple(found)

    def _passed_unseen(self) -> tuple[Launch, ...]:
        """The latest operators on the device since the last launch that was seen, as the observer in C++ knows them."""
        given, device = self._journal.given, self._context.allocator.device
        if given and given[-1].passed == self._journal.unseen:
            return ()
        observed = (each.launch for each in self._journal.last_observed())
        return tuple(each for each in observed if any(p.view.device == device for p in each.pointers))[-_LAUNCHES:]

    def _without_values(self, launch: Launch) -> LastLaunch:
        values = tuple(
            LaunchArgument(p.argument, self._owner(p.view), p.view.dtype, p.view.shape, b"") for p in launch.pointers
        )
        return LastLaunch(launch.name, None, None, values)

    def _asserted_by(self, given: Given, copies: list[bytes]) -> AssertedIndex | None:
        """The failed index assert of a launch; computed once."""
        for launch, known in self._asserted:
            if launch is given.launch:
                return known
        found = None
        if given.launch.compiled is not None:
            with error_barrier("index that a launch asserts"):
                starts = (view.start for _, view in given.copied)
                found = asserted_index(given.launch, zip(starts, copies, strict=True))
                if found is not None and found.into:
                    found = self._named(found, given.launch)
        self._asserted = [*self._asserted, (given.launch, found)][-_LAUNCHES:]
        return found

    def _named(self, found: AssertedIndex, launch: Launch) -> AssertedIndex:
        """Adds the name of the indexed buffer, or of the buffer from which it was filled earlier."""
        view = _argument(launch, found.into)
        if view is None:
            return found
        owner = self._owner(view)
        if owner:
            return msgspec.structs.replace(found, owner=owner)
        earlier = self._writer_before(launch, view)
        source = _source_of(earlier, view) if earlier is not None else None
        if source is None:
            return found
        return msgspec.structs.replace(found, owner=self._owner(source), copied=True)

    def _writer_before(self, launch: Launch, view: TensorView) -> Launch | None:
        """The latest launch before this one that was given bytes of a view to write."""
        ran = [entry.launch for entry in self._journal.taken()[0]]
        at = next((place for place in reversed(range(len(ran))) if ran[place] is launch), len(ran))
        return next((earlier for earlier in reversed(ran[:at]) if _writes(earlier, view)), None)

    def _owner(self, view: TensorView) -> str:
        """The name of a view's buffer, or its allocation site; empty for untracked memory."""
        buffer = self._context.ledger.owner(view.start, view.stop)
        if buffer is None:
            return ""
        self._find_name(buffer)
        return self._context.names.name_of(buffer, view.hull)[0]


def _on_device(rules: Iterable[IndexRule], device: str) -> tuple[tuple[IndexRule, ...], list[tuple[str, TensorView]]]:
    """The rules for indices on a device, and these indices as far as they have bytes."""
    here = tuple(rule for rule in rules if rule.index.device == device)
    return here, [(rule.argument, rule.index) for rule in here if rule.index.nbytes]


def _argument(launch: Launch, name: str) -> TensorView | None:
    """The view that a launch was given for an argument."""
    return next((pointer.view for pointer in launch.pointers if pointer.argument == name), None)


def _writes(launch: Launch, view: TensorView) -> list[Pointer]:
    """The pointers through which a launch may write bytes of a view."""
    return [p for p in launch.pointers if p.may_write and overlaps(p.view, view)]


def _source_of(launch: Launch, view: TensorView) -> TensorView | None:
    """The view from which a launch filled a view element by element, where its code shows this."""
    writes = _writes(launch, view)
    source = source_copied(launch, writes[0].argument) if len(writes) == 1 and writes[0].view == view else ""
    return _argument(launch, source)


def _copy_of(given: Given, view: TensorView, copies: list[bytes]) -> bytes | None:
    return next((data for (_, known), data in zip(given.copied, copies, strict=False) if known == view), None)

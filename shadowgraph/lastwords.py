"""What launches were given, noted just before they run, and looked at when one of them has killed the device."""

from __future__ import annotations

from collections.abc import Callable

from shadowgraph.checks.base import Checkpoint, Context
from shadowgraph.checks.indices import Indices
from shadowgraph.engines.base import LARGEST_COPY, RANGES_COPIED
from shadowgraph.faults import shielded
from shadowgraph.given import GivenValue, LastLaunch
from shadowgraph.journal import Given, Journal
from shadowgraph.tracking.buffers import Buffer
from shadowgraph.tracking.launches import IndexRule, Launch
from shadowgraph.tracking.views import TensorView

_LAUNCHES = 3  # shown of those that had begun
_SHOWN = 1024  # bytes of each argument
_INTEGERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}


class LastWords:
    """Keeps copies of small integer arguments in host memory, in the order of the stream.

    Parameters
    ----------
    find_name
        Looks for a name of a buffer that has none yet.
    """

    def __init__(
        self, context: Context, journal: Journal, indices: Indices, find_name: Callable[[Buffer, Context], None]
    ) -> None:
        self._context, self._journal, self._indices, self._find_name = context, journal, indices, find_name

    def note(self, launch: Launch, rules: tuple[IndexRule, ...], checkpoint: Checkpoint) -> None:
        """Ask for copies of the indices and of small integer arguments of a launch that is about to run."""
        rules = tuple(rule for rule in rules if rule.index.device == self._context.allocator.device)
        copied = [(rule.argument, rule.index) for rule in rules]
        known = {view for _, view in copied}
        for pointer in launch.pointers:
            view = pointer.view
            if view.device != self._context.allocator.device:
                continue  # no kernel of ours may follow a pointer into another device
            if view.dtype in _INTEGERS and view.stop - view.start <= LARGEST_COPY and view not in known:
                copied.append((pointer.argument, view))
                known.add(view)
        copied = [(name, view) for name, view in copied if view.stop > view.start][:RANGES_COPIED]
        if copied:
            mirror = self._context.engine.mirror([view.hull for _, view in copied])
            self._journal.given.append(Given(launch, rules, tuple(copied), mirror, checkpoint))

    def examine(self) -> None:
        """Report the first launch that took an index out of range, of those that had begun; needs no device."""
        for given in list(self._journal.given):
            copies = given.mirror.read()
            for rule in given.rules if copies is not None else ():
                with shielded("indices of a launch"):
                    data = _copy_of(given, rule.index, copies or [])
                    if data is not None and self._indices.judge(given.launch, rule, data, given.checkpoint):
                        return

    def launches(self) -> tuple[LastLaunch, ...]:
        """The last launches that had begun, the latest first; needs no device."""
        found: list[LastLaunch] = []
        for given in reversed(self._journal.given):
            copies = given.mirror.read()
            if copies is not None:
                frame = given.launch.stack[0] if given.launch.stack else None
                values = tuple(
                    GivenValue(name, self._owner(view), view.dtype, view.shape, data[:_SHOWN])
                    for (name, view), data in zip(given.copied, copies, strict=True)
                )
                file, line = (frame.file, frame.line) if frame is not None else (None, None)
                found.append(LastLaunch(given.launch.name, file, line, values))
            if len(found) == _LAUNCHES:
                break
        return tuple(found)

    def _owner(self, view: TensorView) -> str:
        """What a view's buffer is called, or where it was allocated; empty for memory that nobody tracks."""
        buffer = self._context.ledger.owner(view.start, view.stop)
        if buffer is None:
            return ""
        self._find_name(buffer, self._context)
        return self._context.names.name_of(buffer, view.hull)[0]


def _copy_of(given: Given, view: TensorView, copies: list[bytes]) -> bytes | None:
    return next((data for (_, known), data in zip(given.copied, copies, strict=False) if known == view), None)

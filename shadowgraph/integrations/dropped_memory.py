"""Memory whose contents a memory saver or a sleep mode drops while its addresses stay: tells the debugger of both ends.

For the adapters of torch_memory_saver and vLLM: `announce` before the memory is unmapped, `dropped` after it, `back`
once memory is mapped at its addresses again. Between the last two nothing of it is read here. Called in the threads
that pause and resume, without a lock: each change is one operation on a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shadowgraph import session
from shadowgraph.model.ranges import ByteRange, RangeSet

if TYPE_CHECKING:
    from shadowgraph.debugger import Debugger


@dataclass(frozen=True, slots=True, eq=False)
class Drop:
    """Memory of one tag that is about to lose its contents, as a debugger was told.

    Attributes
    ----------
    tag
        The saver's own name for the memory that is mapped again together.
    ranges
        Its addresses.
    lost
        To be called once memory is mapped there again.
    """

    debugger: Debugger
    tag: str
    ranges: RangeSet
    lost: Callable[[], None]


class DroppedMemory:
    """The memory of a process that is unmapped now and comes back without its contents."""

    def __init__(self) -> None:
        self._drops: dict[Drop, None] = {}  # in the order in which they were dropped

    def announce(self, ranges: Mapping[str, Iterable[ByteRange]], how: str) -> list[Drop]:
        """Tell the debugger that memory is about to lose its contents; waits for the device, to read a few bytes.

        Parameters
        ----------
        ranges
            Addresses by tag, all mapped, but for those that are dropped already: these are left out.
        how
            What drops the contents, for the report.

        Returns
        -------
        list of Drop
            For `dropped`, unless the package fails to drop the memory. Empty without a debugger.
        """
        debugger = session.current()
        if debugger is None:
            return []
        gone = RangeSet.of(part for each in list(self._drops) for part in each.ranges)
        here = {tag: RangeSet.of(parts) - gone for tag, parts in ranges.items()}
        tell = debugger.adapter.loses_contents
        return [Drop(debugger, tag, parts, tell(list(parts), how)) for tag, parts in here.items() if parts]

    def dropped(self, drops: Iterable[Drop]) -> None:
        """The memory is unmapped."""
        self._drops.update(dict.fromkeys(drops))

    def back(self, tags: Container[str] | None) -> None:
        """Memory of some tags is mapped again, or of all; a debugger that has ended since is not told."""
        for each in list(self._drops):
            if tags is None or each.tag in tags:
                self._drops.pop(each, None)
                if each.debugger is session.current():
                    each.lost()

    def clear(self) -> None:
        """No resume is seen any longer."""
        self._drops.clear()

    def forget(self, debugger: Debugger) -> None:
        """A debugger has ended; no reference to it is kept."""
        for each in list(self._drops):
            if each.debugger is debugger:
                self._drops.pop(each, None)

"""What the rows of a manifest refer to: texts, frames and stacks by index, and the buffers that hold bytes.

Used by the thread that writes or reads a dump; no lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shadowgraph.model.buffers import Buffer
from shadowgraph.model.ranges import RangeIndex
from shadowgraph.model.stacks import Frame, Stack


class Holders:
    """Buffers by the bytes that they hold; each range is searched once."""

    def __init__(self, live: Iterable[Buffer], freed: Iterable[Buffer]) -> None:
        self.live = _by_address(live)
        self._freed = _by_address(freed)
        self._found: dict[tuple[int, int], Buffer | None] = {}

    def of(self, start: int, stop: int) -> Buffer | None:
        """The smallest live buffer that holds the bytes, else one that holds some of them, else the one freed last."""
        where = start, stop
        if where not in self._found:
            found = [b for _, b in self.live.overlapping(start, max(stop, start + 1))]
            whole = [b for b in found if b.start <= start and stop <= b.stop] or found
            dead = [] if whole else [b for _, b in self._freed.overlapping(start, max(stop, start + 1))]
            last = max(dead, key=lambda b: b.freed_at or 0, default=None)
            self._found[where] = min(whole, key=lambda b: b.nbytes, default=last)
        return self._found[where]

    def all_of(self, address: int) -> list[Buffer]:
        """Every buffer that holds an address, live or freed."""
        return [b for index in (self.live, self._freed) for _, b in index.overlapping(address, address + 1)]


def _by_address(buffers: Iterable[Buffer]) -> RangeIndex[Buffer]:
    return RangeIndex((b.range, b) for b in buffers if b.nbytes)


class Tables:
    """Texts, frames and stacks of a manifest that is written, each with its index."""

    def __init__(self, holders: Holders) -> None:
        self.strings: dict[str, int] = {}
        self.frames: dict[tuple[int, int, int], int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self._stack_at: dict[int, int] = {}
        self._holders = holders

    def text(self, text: str) -> int:
        """The index of a text."""
        return self.strings.setdefault(text, len(self.strings))

    def stack(self, stack: Stack) -> int:
        """The index of a stack."""
        known = self._stack_at.get(id(stack))  # the manifest holds the stack while these tables are in use
        if known is None:
            frames = tuple([self._frame((self.text(f.file), f.line, self.text(f.function))) for f in stack])
            known = self._stack_at[id(stack)] = self.stacks.setdefault(frames, len(self.stacks))
        return known

    def _frame(self, frame: tuple[int, int, int]) -> int:
        return self.frames.setdefault(frame, len(self.frames))

    def home(self, start: int, stop: int) -> tuple[int | None, int]:
        """Serial of the buffer that holds these bytes, and their offset in it; None and 0 where none does."""
        buffer = self._holders.of(start, stop)
        return (buffer.serial, start - buffer.start) if buffer is not None else (None, 0)


class Kept(NamedTuple):
    """Texts and stacks of a manifest that was read."""

    texts: Sequence[str]
    stacks: Sequence[Stack]


def kept_in(strings: Sequence[str], frames: Iterable[tuple[int, int, int]], stacks: Iterable[Sequence[int]]) -> Kept:
    """Texts and stacks by index; equal stacks are one object.

    Raises
    ------
    IndexError
        When a frame or a stack names one that is not there.
    """
    known = [Frame(strings[file], line, strings[function]) for file, line, function in frames]
    return Kept(strings, [tuple([known[frame] for frame in stack]) for stack in stacks])

"""The fences of a debugger: which buffers have one, for the report, and what is said before a kernel runs into one.

`laid` is called in the allocating thread, `met` in the thread of a launch in Triton's interpreter, with no lock held.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable

from shadowgraph.checks.base import Context
from shadowgraph.common.internal_errors import log
from shadowgraph.common.words import plural
from shadowgraph.graphs.dispatch.stepping_aside import refusals
from shadowgraph.model import recorded_files
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.fences import HIT, LAID, Fence
from shadowgraph.model.redaction import hidden
from shadowgraph.model.stacks import current_stack
from shadowgraph.monitor.subscriptions import Subscriptions

_MOST = 64  # kinds of buffers with fences that are reported
_NOWHERE = "", 0


class Fences:
    """The fences of one debugger.

    Parameters
    ----------
    find_name
        Searches a name for a buffer without one.

    Attributes
    ----------
    count
        Buffers that have got one.
    """

    def __init__(self, context: Context, subscriptions: Subscriptions, find_name: Callable[[Buffer], None]) -> None:
        self._context, self._subscriptions, self._find_name = context, subscriptions, find_name
        self._kinds: dict[tuple[object, ...], Buffer] = {}  # the last buffer of each line, type and shape
        self.count = 0

    def laid(self, buffer: Buffer) -> None:
        """A buffer has got a fence."""
        self.count += 1
        kind = (buffer.stack[:1], buffer.dtype, buffer.shape)
        new = kind not in self._kinds
        if new and len(self._kinds) >= _MOST:
            return
        self._kinds[kind] = buffer
        if new:
            self._subscriptions.report_lines.call(f"{LAID}{self._fence(buffer).sentence()}")

    def met(self, edge: int, address: int, itemsize: int, writes: bool) -> None:
        """A kernel is about to access what is not mapped from `edge` on; the process dies of it next, unless it handles
        the signal."""
        ledger = self._context.ledger
        known = (each for each in (*ledger, *reversed(ledger.freed)) if each.fence >= 0)
        buffer = next((each for each in known if each.stop + each.fence == edge), None)
        if buffer is None:
            return
        self._find_name(buffer)
        past = max(0, address - buffer.stop)
        where = "right past the end" if not past else f"{plural(past, 'byte')} past the end"
        by = ", from ".join(f"{os.path.basename(f.file)}:{f.line} in {f.function}" for f in current_stack()[:2])
        access = f"{plural(itemsize, 'byte')} {'written' if writes else 'read'} {where} of"
        name = f"{'' if buffer.alive else 'the freed '}{self._fence(buffer).name}"
        size = plural(buffer.nbytes, "byte")
        line = f"{HIT}{access} {name} ({size}), by {by}: no memory is mapped there, and the process dies of SIGSEGV"
        self._subscriptions.report_lines.call(line)
        log(logging.ERROR, "shadowgraph: %s", line)

    @property
    def kinds(self) -> int:
        """How many lines, types and shapes have got fences so far."""
        return len(self._kinds)

    def rows(self) -> tuple[Fence, ...]:
        """The fences so far, one for each line, type and shape."""
        return tuple(map(self._fence, list(self._kinds.values())))

    def sentence(self, stepped_aside: Iterable[str]) -> str | None:
        """A report line where a fence was wanted and none was laid.

        Parameters
        ----------
        stepped_aside
            Reasons for what was left to the program, those of fences among others.
        """
        where = self._context.settings.fence
        if where is None or self.count:
            return None
        return f"no fence was laid: {'; '.join(refusals(stepped_aside)) or f'nothing was allocated from {where}'}"

    def _fence(self, buffer: Buffer) -> Fence:
        file, line = (buffer.stack[0].file, buffer.stack[0].line) if buffer.stack else _NOWHERE
        name = self._context.names.name_of(buffer)[0]
        place = recorded_files.assigned
        redacts = place is not None and place.redact
        return Fence(hidden(name) if redacts else name, file, line, buffer.nbytes, buffer.fence)

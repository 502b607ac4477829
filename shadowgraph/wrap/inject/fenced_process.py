"""What a wrapped process with fences leaves before it may die at one: a dump before the first replay after a fence was
laid, and the Python stack of a fatal signal.

Called in the thread that starts the debugger, in those that replay, and at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shadowgraph.debugger import Debugger
from shadowgraph.model.fences import LAID
from shadowgraph.wrap.folder.fault_stack import FaultStack


def follow_fences(
    before: FencedProcess | None,
    log: Path,
    debugger: Debugger,
    dump: Callable[[], None] | None,
    tell: Callable[..., None],
) -> FencedProcess | None:
    """Follow the fences of a debugger instead of those of another one, or of the one of a process before its fork.

    Parameters
    ----------
    log
        The findings log of the process.
    dump
        Writes a dump; None where none is wanted.
    tell
        Writes a line, as `text`: what has a fence already, in a process before its fork.
    """
    if before is not None:
        before.leave()
    return FencedProcess(log, debugger, dump, tell) if debugger.settings.fence is not None else None


class FencedProcess:
    """One debugger with fences; parameters as of `follow_fences`."""

    def __init__(
        self, log: Path, debugger: Debugger, dump: Callable[[], None] | None, tell: Callable[..., None]
    ) -> None:
        self._stack, self._fences, self._dump = FaultStack(log), debugger.monitor.fences, dump
        self._dumped = self._fences.kinds
        for fence in self._fences.rows():
            tell(text=f"{LAID}{fence.sentence()}")
        self.leave = debugger.runner.subscribe_replay_begins(self._replay_begins)

    def _replay_begins(self) -> None:
        kinds = self._fences.kinds
        if kinds > self._dumped and self._dump is not None:
            self._dumped = kinds
            self._dump()

    def remove(self) -> None:
        """The process ends in an orderly way."""
        self._stack.remove()

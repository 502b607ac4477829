"""Buffer names of a running debugger, for HTML representations."""

from __future__ import annotations

from shadowgraph.checks.base import Context
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph


class LiveNames:
    """Names of a debugger's buffers, from its ledger and its name book."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def knows(self, thing: object) -> bool:
        if isinstance(thing, Buffer):
            return self._context.ledger.get(thing.serial) is thing
        return isinstance(thing, Graph) and self._context.graphs.get(thing.serial) is thing

    def called(self, buffer: object) -> str:
        assert isinstance(buffer, Buffer)
        return self._context.names.name_of(buffer)[0]

    def at(self, address: int) -> tuple[str, int] | None:
        buffer = self._context.ledger.owner(address, address + 1)
        return (self.called(buffer), address - buffer.start) if buffer is not None else None

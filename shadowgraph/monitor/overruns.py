"""What findings have to do with each other: parts of one overrun, and consequences of it. `FindingPipeline` asks it for
every finding, in the thread of an event, under the debugger's lock."""

from __future__ import annotations

from collections.abc import Callable

from shadowgraph.checks.base import Context, Detection
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Finding
from shadowgraph.model.guards import Side
from shadowgraph.monitor.broken_guards import BrokenGuards
from shadowgraph.monitor.consequences import Consequences
from shadowgraph.monitor.finding_store import FindingStore
from shadowgraph.monitor.name_search import NameSearch
from shadowgraph.monitor.overrun_chain import OverrunChain


class Overruns:
    """The links between the findings of one store.

    Attributes
    ----------
    book
        The findings.
    """

    def __init__(
        self, book: FindingStore, context: Context, search: NameSearch, stays: Callable[[Buffer, Side], bool]
    ) -> None:
        self.book, self._context, self._search = book, context, search
        guards = BrokenGuards(book, context.ledger, stays)
        self._chain = OverrunChain(guards, self._name_of)
        self._consequences = Consequences(guards, self._chain)

    def noticed(self, kept: Finding, draft: Detection | None) -> list[Finding]:
        """A finding was stored, or without a detection revised. Returns the new revisions of findings."""
        revised = self._chain.revised(kept) if draft is None else self._chain.noticed(draft, kept)
        return self._with_consequences(kept, *revised)

    def judged(self) -> list[Finding]:
        """All evidence that has arrived was dispatched. Returns the new revisions of findings."""
        return self._with_consequences(*self._chain.judged())

    def _with_consequences(self, *revised: Finding) -> list[Finding]:
        latest = [self.book.get(finding.id) or finding for finding in revised]
        told = {finding.id: finding for finding in (*latest, *self._consequences.of(*latest))}
        return [self.book.get(id) or finding for id, finding in told.items()]

    def _name_of(self, buffer: Buffer) -> str:
        self._search.name(buffer)
        return self._context.names.name_of(buffer)[0]

"""Protocol of a live debugger for dumps, views and plots, which must not import its class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from shadowgraph.common.settings import Settings

if TYPE_CHECKING:
    from shadowgraph.model.graphs import Graph
    from shadowgraph.model.listings import Buffers, Findings
    from shadowgraph.model.run_facts import RunFacts
    from shadowgraph.monitor.monitor import Monitor
    from shadowgraph.tracking.aliases import NameBook


@runtime_checkable
class LiveDebugger(Protocol):
    """`shadowgraph.Debugger`, which inherits from this protocol."""

    settings: Settings

    @property
    def started(self) -> bool: ...

    @property
    def monitor(self) -> Monitor: ...

    @property
    def names(self) -> NameBook: ...

    @property
    def findings(self) -> Findings: ...

    @property
    def notes(self) -> Findings: ...

    @property
    def graphs(self) -> tuple[Graph, ...]: ...

    @property
    def buffers(self) -> Buffers: ...

    def facts(self) -> RunFacts: ...

    def check(self) -> Findings: ...

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
    def started(self) -> bool:
        """Whether it watches now."""

    @property
    def monitor(self) -> Monitor:
        """The running debugger's central object."""

    @property
    def names(self) -> NameBook:
        """Names of buffers."""

    @property
    def findings(self) -> Findings:
        """Findings so far."""

    @property
    def notes(self) -> Findings:
        """Notes so far."""

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Models of the captured graphs."""

    @property
    def buffers(self) -> Buffers:
        """Live buffers."""

    def facts(self) -> RunFacts:
        """What a report is made of."""

    def check(self) -> Findings:
        """Check now, and wait."""

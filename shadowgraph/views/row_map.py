"""Data of a stale-row map: the state of each row of the static inputs of graphs, replay by replay.
Drawn by `shadowgraph.render.plots.row_map`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shadowgraph.checks.stale_rows.facts import StaleRowsDetail
from shadowgraph.common.errors import UsageError
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Finding
from shadowgraph.model.row_history import InputRows, RowsAtReplay, RowState
from shadowgraph.views.source import Source, Watched, findings_here, source_of


@dataclass(frozen=True, slots=True)
class RowMark:
    """Stale rows of a finding: first and last row of each stretch, at one replay.

    Attributes
    ----------
    since
        The replays for which the rows were written, in words.
    padded
        Inputs that were written in these rows meanwhile.
    """

    finding: int
    code: str
    replay: int
    rows: tuple[tuple[int, int], ...]
    since: str = ""
    padded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RowPanel:
    """The rows of an input that a graph reads.

    Attributes
    ----------
    first_byte
        Offset of row 0 in the buffer.
    replays
        The oldest first; numbers may skip.
    """

    graph: str
    buffer: str
    dtype: str
    first_byte: int
    count: int
    row_nbytes: int
    replays: tuple[RowsAtReplay, ...]
    marks: tuple[RowMark, ...] = ()

    def state(self, replay: int, row: int) -> RowState | None:
        """The state of a row at a replay; None where no state was kept."""
        at = next((each for each in self.replays if each.replay == replay), None)
        for stretch in at.rows if at is not None else ():
            if stretch.first <= row <= stretch.last:
                return stretch.state
        return None

    @property
    def mixed(self) -> bool:
        """Whether at some replay some rows were written and others kept."""
        return any({RowState.KEPT} < {stretch.state for stretch in at.rows} for at in self.replays)


@dataclass(frozen=True, slots=True)
class RowMap:
    """Inputs, sorted by graph; `names` of graphs by serial; `others` counts findings that are not about rows."""

    panels: tuple[RowPanel, ...]
    names: tuple[tuple[int, str], ...] = ()
    others: int = 0

    @classmethod
    def of(
        cls, watched: Watched, graph: str | None = None, *, buffer: str | None = None, finding: int | None = None
    ) -> RowMap:
        """The rows of inputs of the graphs of a debugger or of an open dump. Owned data.

        Parameters
        ----------
        graph
            Name or number of the graph to keep; when None, the graph of `finding`, else all.
        buffer
            Keep this buffer alone: an owner name, the end of an owner name, or an address.
        finding
            Mark this finding alone.

        Raises
        ------
        UsageError
            For a graph or a finding that does not exist, and without a history of rows.
        UnknownBufferError
            For an unknown buffer.
        """
        source = source_of(watched)
        only = source.finding(finding) if finding is not None else None
        if only is not None and not isinstance(only.detail, StaleRowsDetail):
            raise UsageError(f"finding #{only.id} ({only.code}) is about no rows")
        if graph is None and only is not None:
            graph = only.graph
        rows = _rows(source, graph, buffer)
        names = {each.serial: each.name for each in source.dump.manifest.graphs}
        findings = [only] if only is not None else [f for f in source.findings if isinstance(f.detail, StaleRowsDetail)]
        panels = _panels(source, rows, names, findings)
        ordered = sorted(panels, key=lambda panel: (panel.graph, _in_number(panel.buffer), panel.first_byte))
        shown = {mark.finding for panel in ordered for mark in panel.marks}
        others = sum(each.id not in shown for each in source.dump.manifest.facts.findings)
        return cls(tuple(ordered), tuple(names.items()), others)

    @property
    def counted(self) -> str:
        """Counts of findings in words."""
        return findings_here(len(self.marked), self.others, "rows")

    @property
    def marked(self) -> tuple[int, ...]:
        """Ids of the marked findings."""
        return tuple(dict.fromkeys(mark.finding for panel in self.panels for mark in panel.marks))


def _rows(source: Source, graph: str | None, buffer: str | None) -> list[InputRows]:
    """The histories of rows of a graph and of a buffer; of all where they are None."""
    serial = source.graph(graph).serial if graph is not None else None
    kept = None if buffer is None else {each.serial for each in source.buffers(buffer)}
    rows = source.dump.manifest.input_rows
    if not rows:
        raise UsageError("no history of rows was kept: no graph that reads rows of static inputs was replayed")
    return [each for each in rows if serial in (None, each.graph) and (kept is None or each.buffer in kept)]


def _panels(
    source: Source, rows: Iterable[InputRows], names: Mapping[int, str], findings: Sequence[Finding]
) -> Iterator[RowPanel]:
    """Panels of the rows whose buffer and graph are known."""
    known = {each.serial: each for each in (*source.dump.freed, *source.dump.buffers)}
    for each in rows:
        if each.buffer in known and each.graph in names:
            yield _panel(source, each, known[each.buffer], names[each.graph], findings)


def _in_number(name: str) -> list[str | int]:
    """A key that sorts ``wrappers[2]`` before ``wrappers[10]``."""
    return [int(part) if at % 2 else part for at, part in enumerate(re.split(r"([0-9]+)", name))]


def _panel(source: Source, rows: InputRows, home: Buffer, graph: str, findings: Sequence[Finding]) -> RowPanel:
    marks = (_mark(rows, home, finding) for finding in findings if finding.graph == graph)
    known = {at.replay: at for at in rows.replays if at.rows}
    return RowPanel(
        graph,
        source.book.name(home),
        home.dtype,
        rows.offset,
        rows.count,
        rows.nbytes,
        tuple(known[number] for number in sorted(known)),
        tuple(mark for mark in marks if mark is not None),
    )


def _mark(rows: InputRows, home: Buffer, finding: Finding) -> RowMark | None:
    """The stale rows of a finding, if the finding is on this input."""
    stale, facts = finding.detail, finding.bytes
    if not isinstance(stale, StaleRowsDetail) or facts is None or finding.replay is None or not stale.stale:
        return None
    begins = home.start + rows.offset + stale.stale[0].first * rows.stride
    if stale.rows != rows.count or finding.buffer.address + facts.first != begins:
        return None
    was = dict.fromkeys(f"replay {each.replay}" if each.replay is not None else "an older one" for each in stale.stale)
    spans = tuple((each.first, each.last) for each in stale.stale)
    return RowMark(finding.id, finding.code, finding.replay, spans, " and ".join(list(was)[:3]), stale.padded)

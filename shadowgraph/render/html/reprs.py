"""Notebook representations of objects: fragments of the report page, without scripts. Called by ``_repr_html_``."""

from __future__ import annotations

from functools import singledispatch
from itertools import islice
from typing import Any

from shadowgraph.common.html_repr import namer_of
from shadowgraph.common.words import plural
from shadowgraph.dumps.reader import Dump
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Finding
from shadowgraph.model.graphs import Graph
from shadowgraph.model.listings import Buffers, Findings
from shadowgraph.render.engine import render
from shadowgraph.render.html.cards import card_of, grouped
from shadowgraph.render.html.page import Page, dump_report, live_page, run_page
from shadowgraph.render.html.tables import graph_table, listed_table
from shadowgraph.render.html.things import buffer_facts, buffer_rows, dumped_owners, live_owners, name_of
from shadowgraph.render.text.aliases_text import AliasesReport
from shadowgraph.render.text.nodes_text import NodesReport
from shadowgraph.render.text.run_text import RunReport
from shadowgraph.render.text.shown import Reporter
from shadowgraph.render.text.text import Report
from shadowgraph.tracking.aliases import OwnerGroups
from shadowgraph.views.alias_list import AliasGroup

_FINDINGS = 50
_BUFFERS = 100
_GROUPS = 30
_GRAPHS = 6
_LINES = 400


@singledispatch
def html_of(thing: object) -> str | None:
    """The HTML fragment of an object; None for an object without a better form than its text."""
    return None


def _cell(kind: str, **values: Any) -> str:
    return render("cell.html", kind=kind, **values)


def _report(page: Page) -> str:
    return _cell("report", page=page)


@html_of.register
def _(report: Report) -> str:
    return _report(live_page(report.facts))


@html_of.register
def _(report: RunReport) -> str:
    return _report(run_page(report, ()))


@html_of.register
def _(dump: Dump) -> str:
    return _report(dump_report(dump))


@html_of.register
def _(finding: Finding) -> str:
    return _cell("finding", finding=card_of(finding))


@html_of.register
def _(findings: Findings) -> str:
    shown = [card_of(finding) for finding in findings[:_FINDINGS]]
    noun = "finding" if all(card.error for card in shown) else "note"
    title = plural(len(findings), noun) if findings else "none"
    return _cell("findings", title=title, findings=shown, more=len(findings) - len(shown))


@html_of.register
def _(buffer: Buffer) -> str:
    return _cell("buffer", title=name_of(buffer), facts=grouped(buffer_facts(buffer)))


@html_of.register
def _(buffers: Buffers) -> str:
    rows = buffer_rows(buffers[:_BUFFERS])
    return _cell("buffers", title=plural(len(buffers), "buffer"), rows=rows, more=len(buffers) - len(rows))


@html_of.register
def _(graph: Graph) -> str:
    namer = namer_of(graph)
    return _cell("graphs", graphs=[graph_table(graph, namer.at if namer is not None else _as_number)])


def _as_number(address: int) -> tuple[str, int]:
    return f"{address:#x}", 0


@html_of.register
def _(report: NodesReport) -> str:
    return _cell("graphs", graphs=[listed_table(graph) for graph in report.graphs[:_GRAPHS]])


@html_of.register
def _(groups: OwnerGroups) -> str:
    rows = [live_owners(group) for group in groups[:_GROUPS]]
    return _cell("owners", title=_sharing(len(groups)), rows=rows, more=len(groups) - len(rows))


@html_of.register
def _(report: AliasesReport) -> str:
    rows = [dumped_owners(group) for group in report.groups[:_GROUPS]]
    return _cell("owners", title=_sharing(len(report.groups)), rows=rows, more=len(report.groups) - len(rows))


@html_of.register
def _(group: AliasGroup) -> str:
    return _cell("owners", title=_sharing(1), rows=[dumped_owners(group)], more=0)


def _sharing(groups: int) -> str:
    return f"{plural(groups, 'group')} of owners that share bytes" if groups else "no two owners share bytes"


@html_of.register
def _(report: Reporter) -> str:
    lines = [line.plain for line in report.lines()]
    return _cell("lines", lines=list(islice(lines, _LINES)), more=max(0, len(lines) - _LINES))

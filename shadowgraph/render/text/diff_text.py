"""Comparison of two dumps or runs as text and JSON: the A/B of a fix in one screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from shadowgraph.common.words import form, plural
from shadowgraph.render.text.shown import Reporter, cut, said
from shadowgraph.views.difference import (
    BufferFact,
    Changed,
    ChangedAlias,
    ChangedGraph,
    Differences,
    GraphFact,
    SeenFinding,
    Side,
    Unnamed,
)

SCHEMA = "shadowgraph.diff/1"
_PATHS = 4
_SHOWN = 8  # lines of each part, unless all are requested


class DiffReport(Reporter):
    """Two sides and their differences. Holds data only.

    Parameters
    ----------
    whole
        Show every line, not only the first of each part.
    """

    schema = SCHEMA

    def __init__(self, before: Side, after: Side, found: Differences, whole: bool = False) -> None:
        self.sides, self.found = (before, after), found
        self.most = None if whole else _SHOWN

    def document(self) -> dict[str, Any]:
        before, after = map(_plain, self.sides)
        return {"before": before, "after": after, "differences": self.found}

    def lines(self, width: int | None = None) -> Iterator[Text]:
        """Every line; names are never shortened."""
        for letter, side in zip("AB", self.sides, strict=True):
            yield said(f"{letter}  {side.path}: {side.label}", "bold")
        yield from self._findings()
        if self.found.compared:
            yield from self._memory()
        else:
            yield said("buffers, aliases and graphs are not compared: that takes a dump of both", "yellow")
        for letter, side in zip("AB", self.sides, strict=True):
            yield said(f"{letter}  {side.facts.coverage.sentence()}")

    def _findings(self) -> Iterator[Text]:
        found = self.found
        yield said(f"findings: {len(found.gone):,} gone, {len(found.new):,} new, {len(found.same):,} the same", "bold")
        for sign, style, findings in (("-", "green", found.gone), ("+", "red", found.new), ("=", "yellow", found.same)):
            yield from self._cut((said(f"  {sign} {_finding(each)}", style) for each in findings), "findings")

    def _memory(self) -> Iterator[Text]:
        found = self.found
        differ = len(found.buffers) + len(found.views)
        yield said(f"buffers: {differ:,} named differ, {found.same_buffers:,} the same", "bold")
        lines = [said(f"  {_changed(each)}") for each in (*found.buffers, *found.views)]
        yield from self._cut(lines, "names")
        yield from self._cut([said(f"  {_unnamed(each)}") for each in found.unnamed], "places")
        yield said(f"aliases: {len(found.aliases):,} groups differ, {found.same_aliases:,} the same", "bold")
        yield from self._cut([said(f"  {_alias(each)}") for each in found.aliases], "groups")
        yield said(f"graphs: {len(found.graphs):,} differ, {found.same_graphs:,} the same", "bold")
        yield from self._cut([said(f"  {_graph(each)}") for each in found.graphs], "graphs")

    def _cut(self, lines: Any, what: str) -> Iterator[Text]:
        yield from lines if self.most is None else cut(lines, self.most, f"{what}; --all shows them")


def _plain(side: Side) -> dict[str, Any]:
    pids = [dump.manifest.pid for dump in side.dumps]
    dumps = [str(dump.path) for dump in side.dumps]
    return {"path": side.path, "label": side.label, "pids": pids, "dumps": dumps, "coverage": side.facts.coverage}


def _finding(finding: SeenFinding) -> str:
    times = f" ({finding.before:,} in A, {finding.after:,} in B)" if max(finding.before, finding.after) > 1 else ""
    note = "note: " if finding.severity == "note" else ""
    hidden = f", suppressed in {finding.suppressed}" if finding.suppressed else ""
    return f"{note}{finding.message}, fingerprint {finding.fingerprint}{times}{hidden}"


def _changed(change: Changed) -> str:
    if not change.before:
        return f"+ {change.name}: {_facts(change.after)}"
    if not change.after:
        return f"- {change.name}: {_facts(change.before)}"
    return f"~ {change.name}: {_facts(change.before)} -> {_facts(change.after)}"


def _facts(facts: Sequence[BufferFact]) -> str:
    """Facts of each process, equal ones once."""
    counts = dict.fromkeys(facts)
    parts = [_fact(fact) for fact in counts]
    return "; ".join(parts[:_PATHS]) + (f"; and {len(parts) - _PATHS:,} more" if len(parts) > _PATHS else "")


def _fact(fact: BufferFact) -> str:
    where = f" from byte {fact.offset:,} on" if fact.offset else ""
    steps = f", strides {list(fact.stride)}" if fact.stride and not _dense(fact) else ""
    return f"{form(fact.dtype, fact.shape)}, {plural(fact.nbytes, 'byte')}{where}{steps}, {fact.role} on {fact.device}"


def _dense(fact: BufferFact) -> bool:
    expected = 1
    for size, step in zip(reversed(fact.shape), reversed(fact.stride), strict=True):
        if size > 1 and step != expected:
            return False
        expected *= size
    return True


def _unnamed(change: Unnamed) -> str:
    before = f"{plural(change.before, 'buffer')} of {plural(change.nbytes_before, 'byte')}"
    after = f"{plural(change.after, 'buffer')} of {plural(change.nbytes_after, 'byte')}"
    return f"~ unnamed from {change.place}: {before} -> {after}"


def _alias(change: ChangedAlias) -> str:
    sign = {"new": "+", "gone": "-"}.get(change.change, "~")
    joined = f"; now also {_paths(change.joined)}" if change.joined else ""
    left = f"; no longer {_paths(change.left)}" if change.left else ""
    return f"{sign} {_paths(change.paths)}{joined}{left}"


def _paths(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _PATHS:,} more" if len(paths) > _PATHS else ""
    return f"{', '.join(paths[:_PATHS])}{more}"


def _graph(change: ChangedGraph) -> str:
    if not change.before:
        return f"+ {change.name}: {_nodes(change.after)}"
    if not change.after:
        return f"- {change.name}: {_nodes(change.before)}"
    return f"~ {change.name}: {_nodes(change.before)} -> {_nodes(change.after)}"


def _nodes(facts: Sequence[GraphFact]) -> str:
    known = dict.fromkeys(
        f"{fact.launches:,} launch{'' if fact.launches == 1 else 'es'}"
        + (f", {plural(fact.device, 'node')}" if fact.device is not None else "")
        for fact in facts
    )
    return "; ".join(known)

"""Comparison of two dumps or runs: findings, buffers, aliases, graphs. Called by `shadowgraph diff`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from shadowgraph.dumps.naming import BufferNames
from shadowgraph.dumps.reader import Dump
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Finding, Severity
from shadowgraph.model.run_facts import RunFacts
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

Fact = TypeVar("Fact", bound=Hashable)


def differences(before: Side, after: Side) -> Differences:
    """Compare two sides; memory and graphs only where both sides have dumps."""
    gone, new, same = _findings(before.facts, after.facts)
    compared = bool(before.dumps and after.dumps)
    first, second = (_Memory(side.dumps if compared else ()) for side in (before, after))
    aliases, same_aliases = _aliases(first.groups, second.groups)
    graphs, same_graphs = _changed(first.graphs, second.graphs)
    for memory, other in ((first, second), (second, first)):
        memory.rename(other)
    buffers, same_buffers = _changed(first.named, second.named)
    return Differences(
        gone=gone,
        new=new,
        same=same,
        buffers=tuple(Changed(*each) for each in buffers),
        views=_changed_views(first, second, {name for name, _, _ in buffers}),
        unnamed=_unnamed(first.unnamed, second.unnamed),
        aliases=aliases,
        graphs=tuple(ChangedGraph(*each) for each in graphs),
        same_buffers=same_buffers,
        same_aliases=same_aliases,
        same_graphs=same_graphs,
        compared=compared,
    )


class _Memory:
    """Facts of dumps by name, one fact for each process with that name."""

    def __init__(self, dumps: Sequence[Dump]) -> None:
        self.named: dict[str, Counter[BufferFact]] = {}
        self.views: dict[str, Counter[BufferFact]] = {}
        self.unnamed: dict[str, list[int]] = {}
        self.graphs: dict[str, Counter[GraphFact]] = {}
        self.groups: list[frozenset[str]] = []
        for dump in dumps:
            self._take(dump)
        self.groups = list(dict.fromkeys(self.groups))

    def _take(self, dump: Dump) -> None:
        book = BufferNames(dump)
        best: set[str] = set()
        for buffer in dump.buffers:
            owners = book.owners(buffer)
            if owners:
                best.add(owners[0].path)
                self.named.setdefault(owners[0].path, Counter())[_fact(buffer)] += 1
            else:
                self.unnamed.setdefault(_place(buffer), []).append(buffer.nbytes)
            for owner in owners:
                view = owner.view
                offset = view.start - buffer.start
                fact = BufferFact(
                    view.nbytes, view.dtype, view.shape, str(buffer.role), view.device, view.stride, offset
                )
                self.views.setdefault(owner.path, Counter())[fact] += 1
        for graph in dump.manifest.graphs:
            device = None if graph.device is None else len(graph.device)
            self.graphs.setdefault(graph.name, Counter())[GraphFact(len(graph.nodes), device)] += 1
        rows = dump.manifest.owners
        self.groups += [frozenset(rows[index].path for index in group) for group in dump.manifest.alias_groups]

    def rename(self, other: _Memory) -> None:
        """Where the other side's best name of a buffer is not the best here, compare that owner's view on both."""
        for name in [name for name in other.named if name not in self.named and name in self.views]:
            self.named[name], other.named[name] = self.views[name], other.views[name]


def _fact(buffer: Buffer) -> BufferFact:
    return BufferFact(buffer.nbytes, buffer.dtype, buffer.shape, str(buffer.role), buffer.device)


def _place(buffer: Buffer) -> str:
    """The allocation site of a buffer, without a line number, which a fix may move."""
    if not buffer.stack:
        return f"{buffer.role} memory without a stack"
    frame = buffer.stack[0]
    return f"{frame.file.replace(chr(92), '/').rsplit('/', 1)[-1]} in {frame.function}"


def _findings(before: RunFacts, after: RunFacts) -> tuple[tuple[SeenFinding, ...], ...]:
    """Gone, new and common findings, errors first. One that a side suppresses is there, and neither gone nor new."""
    shown = {each.fingerprint for facts in (before, after) for each in (*facts.findings, *facts.notes)}
    first, second = (
        _by_fingerprint((*facts.findings, *facts.notes, *(f for f in facts.hidden if f.fingerprint in shown)))
        for facts in (before, after)
    )
    seen = [_seen(first.get(each, []), second.get(each, [])) for each in dict.fromkeys((*first, *second))]
    seen.sort(key=lambda finding: finding.severity is not Severity.ERROR)
    gone = tuple(finding for finding in seen if not finding.after)
    new = tuple(finding for finding in seen if not finding.before)
    return gone, new, tuple(finding for finding in seen if finding.before and finding.after)


def _by_fingerprint(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.fingerprint, []).append(finding)
    return found


def _seen(before: Sequence[Finding], after: Sequence[Finding]) -> SeenFinding:
    latest = (after or before)[0]
    return SeenFinding(
        latest.fingerprint,
        latest.code,
        latest.severity,
        latest.buffer.name,
        latest.message,
        len(before),
        len(after),
        "".join(side for side, found in (("A", before), ("B", after)) if found and all(f.suppressed_by for f in found)),
    )


def _changed(
    before: Mapping[str, Counter[Fact]], after: Mapping[str, Counter[Fact]]
) -> tuple[list[tuple[str, tuple[Fact, ...], tuple[Fact, ...]]], int]:
    """Names whose facts differ, with the facts of one side only, and the number of names with equal facts."""
    differ: list[tuple[str, tuple[Fact, ...], tuple[Fact, ...]]] = []
    names = dict.fromkeys((*before, *after))
    for name in names:
        one, other = before.get(name, Counter()), after.get(name, Counter())
        if one != other:
            differ.append((name, tuple((one - other).elements()), tuple((other - one).elements())))
    return differ, len(names) - len(differ)


def _changed_views(before: _Memory, after: _Memory, whole: Container[str]) -> tuple[Changed, ...]:
    """Views that differ and exist on both sides, without those named in `whole`."""
    views, _ = _changed(before.views, after.views)
    return tuple(Changed(name, one, other) for name, one, other in views if one and other and name not in whole)


def _unnamed(before: Mapping[str, list[int]], after: Mapping[str, list[int]]) -> tuple[Unnamed, ...]:
    found = []
    for place in dict.fromkeys((*before, *after)):
        one, other = before.get(place, []), after.get(place, [])
        if (len(one), sum(one)) != (len(other), sum(other)):
            found.append(Unnamed(place, len(one), len(other), sum(one), sum(other)))
    return tuple(sorted(found, key=lambda each: -abs(each.nbytes_after - each.nbytes_before)))


def _aliases(before: Sequence[frozenset[str]], after: Sequence[frozenset[str]]) -> tuple[tuple[ChangedAlias, ...], int]:
    """Groups that differ, each paired with the group of the other side that shares most of its owners."""
    home = {path: place for place, group in enumerate(before) for path in group}
    paired: set[int] = set()
    found: list[ChangedAlias] = []
    same = 0
    for group in after:
        place = _likest(group, home)
        if place is None or place in paired:
            found.append(ChangedAlias("new", _sorted(group)))
            continue
        paired.add(place)
        old = before[place]
        if old == group:
            same += 1
        else:
            found.append(ChangedAlias("changed", _sorted(old & group), _sorted(group - old), _sorted(old - group)))
    gone = (ChangedAlias("gone", _sorted(group)) for place, group in enumerate(before) if place not in paired)
    return (*found, *gone), same


def _likest(group: Iterable[str], home: Mapping[str, int]) -> int | None:
    """The place that is home to most owners of a group, on a tie the first."""
    common = Counter(home[path] for path in group if path in home)
    return max(common, key=lambda each: (common[each], -each), default=None)


def _sorted(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(paths, key=lambda path: (len(path), path)))

"""Size limit of a dump: drops the least useful contents first, and lists what was dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from msgspec.structs import replace

from shadowgraph.dumps.container import MANIFEST_MOST
from shadowgraph.dumps.encoding import encoded, json_of
from shadowgraph.dumps.planning import WORDS
from shadowgraph.dumps.schema import LeftOut, Manifest, PayloadRow, Why

_SPARE = 4096  # for the header's own entry and the list of dropped contents
_ENTRY = 110  # bytes of a payload's entry in the header, at most
_FINDINGS = 100  # findings kept whatever the limit
_MARKS = 64  # high-water marks kept, the fullest
_REASON = "for size"
_LARGE = "left out of the dump for size"

# A step returns the reduced manifest, the kind of what it dropped, and their number.
Step = Callable[[Manifest], tuple[Manifest, str, int]]


def fitted(whole: Manifest, limit: int) -> Manifest:
    """A manifest whose file, with the payloads that it lists, has at most `limit` bytes: the first of its payloads.

    The manifest may take half of the limit, memory contents the rest. The first findings stay even when the limit is
    too small for them.
    """
    bare = replace(whole, payloads=())
    size = len(encoded(bare))
    for step in _STEPS:
        if size <= min(limit, MANIFEST_MOST) // 2:
            break
        bare, what, count = step(bare)
        if count:
            bare = replace(bare, left_out=(*bare.left_out, LeftOut(what, count, 0, _REASON)))
            size = len(encoded(bare))
    room = limit - size - _SPARE
    costs = (row.nbytes + len(json_of(row)) + _ENTRY for row in whole.payloads)
    kept = sum(total <= room for total in accumulate(costs))
    left_out = _summed([*bare.left_out, *_dropped(whole.payloads[kept:])])
    return replace(bare, payloads=whole.payloads[:kept], left_out=left_out)


def _dropped(payloads: Sequence[PayloadRow]) -> list[LeftOut]:
    sizes: dict[Why, list[int]] = {}
    for row in payloads:
        sizes.setdefault(row.why, []).append(row.nbytes)
    return [LeftOut(WORDS[why], len(known), sum(known), _REASON) for why, known in sizes.items()]


def _summed(entries: Sequence[LeftOut]) -> tuple[LeftOut, ...]:
    """One entry per kind and reason: some contents were not copied at all, some did not fit."""
    sums: dict[tuple[str, str], LeftOut] = {}
    for entry in entries:
        before = sums.get((entry.what, entry.reason), LeftOut(entry.what, 0, 0, entry.reason))
        count, nbytes = before.count + entry.count, before.nbytes + entry.nbytes
        sums[entry.what, entry.reason] = replace(entry, count=count, nbytes=nbytes)
    return tuple(sums.values())


def _freed(m: Manifest) -> tuple[Manifest, str, int]:
    return replace(m, freed=()), "freed buffers", len(m.freed)


def _unread(m: Manifest) -> tuple[Manifest, str, int]:
    return replace(m, unread=m.unread[:_FINDINGS]), "entries of what was not read", len(m.unread[_FINDINGS:])


def _launches(m: Manifest) -> tuple[Manifest, str, int]:
    return replace(m, launches=m.launches[-64:]), "launches of the journal", len(m.launches[:-64])


def _replays(m: Manifest) -> tuple[Manifest, str, int]:
    return replace(m, replays=m.replays[-64:]), "replays of the log", len(m.replays[:-64])


def _watches(m: Manifest) -> tuple[Manifest, str, int]:
    short = tuple((name, changes[-8:], dropped + len(changes[:-8])) for name, changes, dropped in m.facts.watches)
    count = sum(len(changes[:-8]) for _, changes, _ in m.facts.watches)
    return replace(m, facts=replace(m.facts, watches=short)), "changes of watched tensors", count


def _marks(m: Manifest) -> tuple[Manifest, str, int]:
    marks = m.facts.high_water
    return replace(m, facts=replace(m.facts, high_water=marks[:_MARKS])), "high-water marks", len(marks[_MARKS:])


def _input_rows(m: Manifest) -> tuple[Manifest, str, int]:
    return replace(m, input_rows=()), "histories of rows", len(m.input_rows)


def _written(m: Manifest) -> tuple[Manifest, str, int]:
    count = len(m.stores) + sum(len(sets.written) for sets in m.write_sets)
    return replace(m, stores=(), write_sets=()), "places that nodes wrote", count


def _device(m: Manifest) -> tuple[Manifest, str, int]:
    bare = tuple(replace(g, device=(), unread=_LARGE) if g.device else g for g in m.graphs)
    return replace(m, graphs=bare), "device nodes of graphs", sum(len(graph.device or ()) for graph in m.graphs)


def _nodes(m: Manifest) -> tuple[Manifest, str, int]:
    bare = tuple(replace(graph, nodes=()) for graph in m.graphs)
    return replace(m, graphs=bare), "nodes of graphs", sum(len(graph.nodes) for graph in m.graphs)


def _owners(m: Manifest) -> tuple[Manifest, str, int]:
    return replace(m, owners=(), alias_groups=()), "owner names", len(m.owners)


def _guards(m: Manifest) -> tuple[Manifest, str, int]:
    return replace(m, guards=()), "guards", len(m.guards)


def _buffers(m: Manifest) -> tuple[Manifest, str, int]:
    concerned = {f.buffer.serial for f in (*m.facts.damage, *m.facts.notes)}
    kept = tuple(buffer for buffer in m.buffers if buffer.serial in concerned)
    return replace(m, buffers=kept), "live buffers", len(m.buffers) - len(kept)


def _hidden(m: Manifest) -> tuple[Manifest, str, int]:
    return replace(m, facts=replace(m.facts, hidden=())), "suppressed findings", len(m.facts.hidden)


def _notes(m: Manifest) -> tuple[Manifest, str, int]:
    return replace(m, facts=replace(m.facts, notes=(), parts=())), "notes", len(m.facts.notes)


def _findings(m: Manifest) -> tuple[Manifest, str, int]:
    kept = replace(m.facts, findings=m.facts.findings[:_FINDINGS])
    return replace(m, facts=kept), "findings", len(m.facts.findings[_FINDINGS:])


_STEPS: tuple[Step, ...] = (
    _freed,
    _unread,
    _hidden,
    _watches,
    _marks,
    _launches,
    _replays,
    _input_rows,
    _written,
    _device,
    _nodes,
    _owners,
    _guards,
    _buffers,
    _notes,
    _findings,
)

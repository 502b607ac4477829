"""Size limit of a dump: drops the least useful contents first, and lists what was dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import msgspec

from shadowgraph.dumps.collecting import Bytes, Collected
from shadowgraph.dumps.container import MANIFEST_MOST
from shadowgraph.dumps.planning import WORDS
from shadowgraph.dumps.schema import LeftOut, Manifest, Why
from shadowgraph.dumps.tables import manifest_of

_SPARE = 4096  # for the header's own entry and the list of dropped contents
_ENTRY = 110  # bytes of a payload's entry in the header, at most
_FINDINGS = 100  # findings kept whatever the limit
_REASON = "for size"
_LARGE = "left out of the dump for size"

# A step returns the reduced contents, the kind of what it dropped, and their number.
Step = Callable[[Collected], tuple[Collected, str, int]]


def fitted(collected: Collected, crcs: Sequence[int], limit: int) -> tuple[Manifest, list[Bytes]]:
    """A manifest and the payloads that it lists, as a file of at most `limit` bytes.

    The manifest may take half of the limit, memory contents the rest. The first findings stay even when the limit is
    too small for them.
    """
    bare = _bare(collected)
    for step in _STEPS:
        if len(msgspec.json.encode(bare)) <= min(limit, MANIFEST_MOST) // 2:
            break
        collected, what, count = step(collected)
        if count:
            collected = replace(collected, left_out=(*collected.left_out, LeftOut(what, count, 0, _REASON)))
            bare = _bare(collected)
    room = limit - len(msgspec.json.encode(bare)) - _SPARE
    whole = manifest_of(collected, crcs)
    costs = (row.nbytes + len(msgspec.json.encode(row)) + _ENTRY for row in whole.payloads)
    kept = sum(total <= room for total in accumulate(costs))
    return (
        msgspec.structs.replace(
            whole,
            payloads=whole.payloads[:kept],
            left_out=_summed([*whole.left_out, *_dropped(collected.bytes[kept:])]),
        ),
        list(collected.bytes[:kept]),
    )


def _bare(collected: Collected) -> Manifest:
    return manifest_of(replace(collected, bytes=()), ())


def _dropped(payloads: Sequence[Bytes]) -> list[LeftOut]:
    sizes: dict[Why, list[int]] = {}
    for each in payloads:
        sizes.setdefault(each.piece.why, []).append(each.piece.where.nbytes)
    return [LeftOut(WORDS[why], len(known), sum(known), _REASON) for why, known in sizes.items()]


def _summed(entries: Sequence[LeftOut]) -> tuple[LeftOut, ...]:
    """One entry per kind and reason: some contents were not copied at all, some did not fit."""
    sums: dict[tuple[str, str], LeftOut] = {}
    for entry in entries:
        before = sums.get((entry.what, entry.reason), LeftOut(entry.what, 0, 0, entry.reason))
        count, nbytes = before.count + entry.count, before.nbytes + entry.nbytes
        sums[entry.what, entry.reason] = msgspec.structs.replace(entry, count=count, nbytes=nbytes)
    return tuple(sums.values())


def _freed(c: Collected) -> tuple[Collected, str, int]:
    return replace(c, freed=()), "freed buffers", len(c.freed)


def _unread(c: Collected) -> tuple[Collected, str, int]:
    return replace(c, unread=c.unread[:_FINDINGS]), "entries of what was not read", len(c.unread[_FINDINGS:])


def _launches(c: Collected) -> tuple[Collected, str, int]:
    return replace(c, launches=c.launches[-64:]), "launches of the journal", len(c.launches[:-64])


def _replays(c: Collected) -> tuple[Collected, str, int]:
    return replace(c, replays=c.replays[-64:]), "replays of the log", len(c.replays[:-64])


def _watches(c: Collected) -> tuple[Collected, str, int]:
    short = tuple((name, changes[-8:], dropped + len(changes[:-8])) for name, changes, dropped in c.facts.watches)
    count = sum(len(changes[:-8]) for _, changes, _ in c.facts.watches)
    return replace(c, facts=msgspec.structs.replace(c.facts, watches=short)), "changes of watched tensors", count


def _input_rows(c: Collected) -> tuple[Collected, str, int]:
    return replace(c, input_rows=()), "histories of rows", len(c.input_rows)


def _written(c: Collected) -> tuple[Collected, str, int]:
    count = len(c.stored) + sum(len(sets.written) for sets in c.write_sets.values())
    return replace(c, stored={}, write_sets={}), "places that nodes wrote", count


def _device(c: Collected) -> tuple[Collected, str, int]:
    bare = tuple(replace(g, device=(), unread=_LARGE) if g.device else g for g in c.graphs)
    return replace(c, graphs=bare), "device nodes of graphs", sum(len(graph.device or ()) for graph in c.graphs)


def _nodes(c: Collected) -> tuple[Collected, str, int]:
    bare = tuple(replace(graph, nodes=()) for graph in c.graphs)
    return replace(c, graphs=bare), "nodes of graphs", sum(len(graph.nodes) for graph in c.graphs)


def _owners(c: Collected) -> tuple[Collected, str, int]:
    return replace(c, owners=()), "owner names", len(c.owners)


def _guards(c: Collected) -> tuple[Collected, str, int]:
    return replace(c, guards=()), "guards", len(c.guards)


def _buffers(c: Collected) -> tuple[Collected, str, int]:
    concerned = {f.buffer.serial for f in (*c.facts.findings, *c.facts.notes)}
    kept = tuple(buffer for buffer in c.live if buffer.serial in concerned)
    return replace(c, live=kept), "live buffers", len(c.live) - len(kept)


def _notes(c: Collected) -> tuple[Collected, str, int]:
    return replace(c, facts=msgspec.structs.replace(c.facts, notes=())), "notes", len(c.facts.notes)


def _findings(c: Collected) -> tuple[Collected, str, int]:
    kept = msgspec.structs.replace(c.facts, findings=c.facts.findings[:_FINDINGS])
    return replace(c, facts=kept), "findings", len(c.facts.findings[_FINDINGS:])


_STEPS: tuple[Step, ...] = (
    *(
        _freed,
        _unread,
        _watches,
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
    ),
)

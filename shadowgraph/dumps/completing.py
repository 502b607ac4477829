"""Completion of what was collected to a manifest, while the program runs on: what follows from the records."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from shadowgraph.dumps.collecting import Bytes, Collected
from shadowgraph.dumps.encoding import form_of_manifest
from shadowgraph.dumps.schema import GuardRow, Manifest, PayloadRow
from shadowgraph.model.guards import Guard
from shadowgraph.model.owners import Owner
from shadowgraph.tracking.aliases import alias_groups


def manifest_of(collected: Collected, crcs: Sequence[int]) -> Manifest:
    """The complete manifest, with a row for every payload; `crcs` are the payloads' checksums."""
    manifest = collected.manifest
    return replace(
        manifest,
        form=form_of_manifest(),
        facts=replace(manifest.facts, last_values=()),  # those are payloads
        alias_groups=_alias_groups(manifest.owners),
        guards=tuple(map(_guard, collected.guards)),
        payloads=tuple(map(_payload, range(len(crcs)), collected.bytes, crcs)),
    )


def _alias_groups(owners: Sequence[Owner]) -> tuple[tuple[int, ...], ...]:
    """Groups of owners that share memory, each owner as its place among all."""
    place = {id(owner): index for index, owner in enumerate(owners)}
    return tuple(tuple(place[id(owner)] for owner in group) for group in alias_groups(owners))


def _guard(guard: Guard) -> GuardRow:
    near, whole = guard.near, guard.whole
    return GuardRow(guard.buffer.serial, guard.side, near.start, near.nbytes, whole.start, whole.nbytes)


def _payload(index: int, each: Bytes, crc32: int) -> PayloadRow:
    """The index entry of the payload with this number."""
    piece = each.piece
    return PayloadRow(
        tensor=f"payload.{index}",
        start=piece.where.start,
        nbytes=piece.where.nbytes,
        buffer=piece.buffer.serial,
        offset=piece.where.start - piece.buffer.start,
        why=piece.why,
        crc32=crc32,
        name=each.name,
        dtype=piece.buffer.dtype if each.name is not None else None,
        graph=each.graph,
    )

"""Data of an alias map: groups of owners that share bytes, and the number of owners of each byte.
Drawn by `shadowgraph.render.plots.alias_map`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from shadowgraph.common.words import form
from shadowgraph.model.findings import Finding
from shadowgraph.model.views import TensorView
from shadowgraph.views.alias_list import AliasGroup, AliasOwner, alias_list
from shadowgraph.views.memory_map import MapDamage, damage_of
from shadowgraph.views.source import Watched, source_of

_PIECES = 256  # contiguous runs of one view; with more of them the hull is drawn
_OWNERS = 2_000  # owners of one group that are compared byte by byte

Piece = tuple[int, int]  # bytes [start, stop) from the start of the group


@dataclass(frozen=True, slots=True)
class AliasLine:
    """Owners with the same view.

    Attributes
    ----------
    relation
        How the view is made from the group's first owner; None where the two share no byte.
    pieces
        Its bytes; not `exact` where they include the gaps between runs.
    """

    names: tuple[str, ...]
    form: str
    relation: str | None
    pieces: tuple[Piece, ...]
    exact: bool = True


@dataclass(frozen=True, slots=True)
class AliasPanel:
    """A group of owners; the first line is the widest owner's.

    Attributes
    ----------
    depth
        Byte ranges with their number of owners, in order, without gaps.
    damages
        Findings on the buffers that hold the bytes; addresses are absolute.
    """

    address: int
    nbytes: int
    buffers: tuple[str, ...]
    lines: tuple[AliasLine, ...]
    depth: tuple[tuple[int, int, int], ...]
    damages: tuple[MapDamage, ...] = ()

    @property
    def owners(self) -> int:
        return sum(len(line.names) for line in self.lines)

    @property
    def contested(self) -> int:
        """Number of bytes that two or more of the other lines share."""
        return sum(stop - start for start, stop, depth in _depths(self.lines[1:], self.nbytes, False) if depth > 1)


@dataclass(frozen=True, slots=True)
class AliasMap:
    """Alias groups in order of address."""

    panels: tuple[AliasPanel, ...] = ()

    @classmethod
    def of(cls, watched: Watched, *, buffer: str | None = None, finding: int | None = None) -> AliasMap:
        """The alias groups of a debugger or of an open dump. Owned data.

        Parameters
        ----------
        buffer
            Keep the groups with bytes of this buffer: an owner name, the end of an owner name, or an address.
        finding
            Keep the groups of this finding's buffer, and mark this finding alone.

        Raises
        ------
        UsageError
            For a finding that does not exist.
        UnknownBufferError
            For an unknown buffer.
        """
        source = source_of(watched)
        wanted = source.buffers(buffer) if buffer is not None else None
        findings = source.findings
        if finding is not None:
            findings = (source.finding(finding),)
            wanted = wanted if wanted is not None else source.buffers(hex(findings[0].buffer.address))
        by_buffer: dict[int, list[Finding]] = defaultdict(list)
        for each in findings:
            by_buffer[each.buffer.serial].append(each)
        groups = alias_list(source.dump, source.book, wanted)
        return cls(tuple(panel_of(group, by_buffer) for group in groups))


def panel_of(group: AliasGroup, findings: dict[int, list[Finding]]) -> AliasPanel:
    """The panel of one group; `findings` by the serial of their buffer."""
    lines = _lines(group)
    serials = dict.fromkeys(owner.buffer for owner in group.owners if owner.buffer is not None)
    damages = tuple(damage_of(finding, 0) for serial in serials for finding in findings.get(serial, ()))
    depth = tuple(_depths(lines, group.nbytes, True))
    return AliasPanel(group.address, group.nbytes, group.buffers, tuple(lines), depth, damages)


def _lines(group: AliasGroup) -> list[AliasLine]:
    low = min(owner.first for owner in group.owners)
    chief = group.owners[0]
    rest = sorted(group.owners[1:], key=lambda owner: (owner.first, -owner.last, _view(owner)))
    lines = [_line([chief, *(owner for owner in rest if _view(owner) == _view(chief))], low)]
    others = groupby((owner for owner in rest if _view(owner) != _view(chief)), key=_view)
    return [*lines, *(_line(list(owners), low) for _, owners in others)]


def _view(owner: AliasOwner) -> tuple[int, str, tuple[int, ...], tuple[int, ...]]:
    return owner.first, owner.dtype, owner.shape, owner.stride


def _line(owners: Sequence[AliasOwner], low: int) -> AliasLine:
    one = owners[0]
    names = tuple(sorted((owner.path for owner in owners), key=lambda path: (len(path), path)))
    pieces, exact = _pieces(one)
    placed = tuple((start - low, stop - low) for start, stop in pieces)
    return AliasLine(names, form(one.dtype, one.shape), one.relation, placed, exact)


def _pieces(owner: AliasOwner) -> tuple[list[Piece], bool]:
    """A view's bytes as ascending ranges, from the start of the group's first owner."""
    nbytes = owner.last + 1 - owner.first
    span = 1 + sum((size - 1) * stride for size, stride in zip(owner.shape, owner.stride, strict=True))
    if nbytes <= 0 or span <= 0 or nbytes % span:
        return [(owner.first, max(owner.first, owner.last + 1))], nbytes <= 0
    view = TensorView(0, 0, nbytes, owner.shape, owner.stride, owner.dtype, nbytes // span, "")
    runs = view.ranges(_PIECES)
    if runs is None:
        return [(owner.first, owner.last + 1)], False
    return sorted((owner.first + run.start, owner.first + run.stop) for run in runs), True


def _depths(lines: Iterable[AliasLine], nbytes: int, each: bool) -> Iterable[tuple[int, int, int]]:
    """The number of lines at each byte, or of owners with `each`."""
    steps: dict[int, int] = defaultdict(int, {0: 0, nbytes: 0})
    for line in list(lines)[:_OWNERS]:
        for start, stop in line.pieces:
            steps[start] += len(line.names) if each else 1
            steps[stop] -= len(line.names) if each else 1
    depth, before = 0, 0
    merged: list[tuple[int, int, int]] = []
    for at in sorted(steps):
        if at > before:
            if merged and merged[-1][2] == depth and merged[-1][1] == before:
                merged[-1] = (merged[-1][0], at, depth)
            else:
                merged.append((before, at, depth))
        depth, before = depth + steps[at], at
    return merged

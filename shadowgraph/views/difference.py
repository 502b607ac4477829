"""Records of a comparison of two dumps or runs, made by `differences`. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from shadowgraph.dumps.reader import Dump
from shadowgraph.model.findings import Severity
from shadowgraph.model.run_facts import RunFacts


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison.

    Attributes
    ----------
    label
        Its kind, for a header line.
    dumps
        One dump of each process; empty for a run without dumps, of which only findings are known.
    """

    path: str
    label: str
    facts: RunFacts
    dumps: tuple[Dump, ...]


class SeenFinding(msgspec.Struct, frozen=True):
    """A finding by its fingerprint, and the number of findings with this fingerprint on each side.

    Attributes
    ----------
    suppressed
        The sides, ``A`` or ``B``, that have it and show none of it.
    """

    fingerprint: str
    code: str
    severity: Severity
    buffer: str
    message: str
    before: int
    after: int
    suppressed: str = ""


class BufferFact(msgspec.Struct, frozen=True):
    """The compared facts of a buffer, or of an owner's part of it: `offset` bytes from the buffer's start."""

    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    role: str
    device: str
    stride: tuple[int, ...] = ()
    offset: int = 0


class Changed(msgspec.Struct, frozen=True):
    """A name whose facts differ, one fact for each process with this name. Empty `before`: new; empty `after`: gone."""

    name: str
    before: tuple[BufferFact, ...]
    after: tuple[BufferFact, ...]


class Unnamed(msgspec.Struct, frozen=True):
    """Live buffers without an owner name, by allocation site."""

    place: str
    before: int
    after: int
    nbytes_before: int
    nbytes_after: int


class ChangedAlias(msgspec.Struct, frozen=True):
    """Owners that share bytes: in a changed group `paths` are the common owners, in a new or gone group all of them."""

    change: str
    paths: tuple[str, ...]
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class GraphFact(msgspec.Struct, frozen=True):
    """The compared facts of a graph; `device` is the number of device nodes, None where they were not read."""

    launches: int
    device: int | None


class ChangedGraph(msgspec.Struct, frozen=True):
    """A graph whose facts differ; see `Changed`."""

    name: str
    before: tuple[GraphFact, ...]
    after: tuple[GraphFact, ...]


class Differences(msgspec.Struct, frozen=True):
    """The result of a comparison. Counts say how much is the same."""

    gone: tuple[SeenFinding, ...]
    new: tuple[SeenFinding, ...]
    same: tuple[SeenFinding, ...]
    buffers: tuple[Changed, ...]
    views: tuple[Changed, ...]
    unnamed: tuple[Unnamed, ...]
    aliases: tuple[ChangedAlias, ...]
    graphs: tuple[ChangedGraph, ...]
    same_buffers: int
    same_aliases: int
    same_graphs: int
    compared: bool

    @property
    def new_errors(self) -> int:
        """Number of findings on the second side only, without notes."""
        return sum(finding.severity is Severity.ERROR for finding in self.new)

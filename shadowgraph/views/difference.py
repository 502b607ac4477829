"""What a comparison of two dumps or runs is made of. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from shadowgraph.dumps.reader import Dump
from shadowgraph.model.findings import Severity
from shadowgraph.model.run_facts import RunFacts


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two.

    Attributes
    ----------
    label
        What it is, for a head line.
    dumps
        One of each process; empty for a run that left none, of which only findings are known.
    """

    path: str
    label: str
    facts: RunFacts
    dumps: tuple[Dump, ...]


class SeenFinding(msgspec.Struct, frozen=True):
    """A finding by its fingerprint, and how many findings with it each side has."""

    fingerprint: str
    code: str
    severity: Severity
    buffer: str
    message: str
    before: int
    after: int


class BufferFact(msgspec.Struct, frozen=True):
    """What is compared of a buffer, or of an owner's part of it: `offset` bytes from the buffer's start."""

    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    role: str
    device: str
    stride: tuple[int, ...] = ()
    offset: int = 0


class Changed(msgspec.Struct, frozen=True):
    """A name whose facts differ; each process that has it gives one fact. Empty `before`: new; empty `after`: gone."""

    name: str
    before: tuple[BufferFact, ...]
    after: tuple[BufferFact, ...]


class Unnamed(msgspec.Struct, frozen=True):
    """Live buffers that no owner names, by the line that allocated them."""

    place: str
    before: int
    after: int
    nbytes_before: int
    nbytes_after: int


class ChangedAlias(msgspec.Struct, frozen=True):
    """Owners that share bytes: of a group that both sides have `paths` are common, of one that is new or gone all."""

    change: str
    paths: tuple[str, ...]
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class GraphFact(msgspec.Struct, frozen=True):
    """What is compared of a graph; `device` counts nodes as they were read, None where they were not."""

    launches: int
    device: int | None


class ChangedGraph(msgspec.Struct, frozen=True):
    """A graph whose facts differ; see `Changed`."""

    name: str
    before: tuple[GraphFact, ...]
    after: tuple[GraphFact, ...]


class Differences(msgspec.Struct, frozen=True):
    """All of it. Counts say how much is the same."""

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
        """Findings that only the second has, notes not counted."""
        return sum(finding.severity is Severity.ERROR for finding in self.new)

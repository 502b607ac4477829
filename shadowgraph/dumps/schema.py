"""Schema of a dump's manifest: frozen structs, each field as documented in ``docs/dumps.md``.

Rows with tens of thousands of entries are JSON arrays (`array_like`) and refer to texts, frames and stacks by index, so
that a ledger of 100,000 buffers stays small. Within one schema number, fields are only added at the end of a row, each
with a default, and enumerations get no new values. Docstrings of structs are part of the JSON schema and thus of
`form_of_manifest`.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from functools import cache
from typing import Annotated, Any

import msgspec

from shadowgraph.model.buffers import Role
from shadowgraph.model.device_nodes import NodeKind, Sureness
from shadowgraph.model.guards import Side
from shadowgraph.model.kinds import kinds
from shadowgraph.model.launches import Access, LaunchKind
from shadowgraph.model.phases import Phase
from shadowgraph.model.row_history import InputRows
from shadowgraph.model.run_facts import RunFacts

FORMAT = "shadowgraph.dump"
VERSION = 2
SCHEMA = f"{FORMAT}/{VERSION}"

MOST_PAYLOADS = 16_384  # each takes about 100 bytes of header, and some microseconds of the program's time

Index = Annotated[int, msgspec.Meta(ge=0)]


class Why(StrEnum):
    """Why bytes are in a dump, the most useful first."""

    FINDING = "finding"  # around the damage of a finding, guards included, at the time of the dump
    SHADOW = "shadow"  # values mirrored in host memory, from when the buffer's graph last began to replay
    WHOLE = "whole"  # a small buffer
    WINDOW = "window"  # the first or last bytes of a large buffer


class View(msgspec.Struct, frozen=True, array_like=True):
    """A tensor's place. `buffer` is the serial of the buffer that holds it, `offset` counts from that buffer's start;
    None and 0 where no buffer of the dump does."""

    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Index
    itemsize: int
    device: Index
    storage_address: int
    storage_nbytes: int
    buffer: int | None = None
    offset: int = 0


class BufferRow(msgspec.Struct, frozen=True, array_like=True):
    """One tenancy of memory; see `shadowgraph.model.buffers.Buffer`. `freed_at` is a serial too, None in the list of
    live ones."""

    serial: int
    start: int
    nbytes: int
    role: Role
    dtype: Index
    shape: tuple[int, ...]
    itemsize: int
    stack: Index
    device: Index
    graph: int | None = None
    pool: int | None = None
    head_guard: int = 0
    tail_guard: int = 0
    inexact: int = 0
    gap: int = 0
    freed_at: int | None = None


class OwnerRow(msgspec.Struct, frozen=True, array_like=True):
    """An attribute path that led to a tensor."""

    path: str
    view: View


class PointerRow(msgspec.Struct, frozen=True, array_like=True):
    """A tensor argument of a launch."""

    argument: Index
    access: Access
    view: View


class LaunchRow(msgspec.Struct, frozen=True, array_like=True):
    """A launch: a graph's node, or an entry of the journal."""

    kind: LaunchKind
    name: Index
    stack: Index
    pointers: tuple[PointerRow, ...] = ()
    grid: tuple[int, ...] | None = None
    source: Index | None = None


class JournalRow(msgspec.Struct, frozen=True, array_like=True):
    """A launch that ran lately: when, in which phase, and as which node of which graph (eager ones: None)."""

    launch: LaunchRow
    time: float
    phase: Phase | None = None
    graph: int | None = None
    node: int | None = None


class WordRow(msgspec.Struct, frozen=True, array_like=True):
    """A word of a node's arguments that holds an address, `at` bytes into the buffer with the serial `buffer`; None and
    0 where no buffer of the dump holds it."""

    argument: Index
    offset: Index
    name: Index
    address: Index
    sureness: Sureness
    buffer: int | None = None
    at: int = 0


class RangeRow(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that a node reads or writes, `at` bytes into the buffer with the serial `buffer`; see `WordRow`."""

    start: Index
    nbytes: Index
    buffer: int | None = None
    at: int = 0


class DeviceRow(msgspec.Struct, frozen=True, array_like=True):
    """A node of an executable graph; its number is its place among its siblings.

    Attributes
    ----------
    launch, stack
        The launch that made it, by its place in the graph's `nodes`; without one, the stack that did, or None.
    after
        Siblings that it waits for; following them leads to no circle.
    inner
        Nodes of a child graph.
    """

    kind: NodeKind
    name: Index
    grid: tuple[Index, ...] | None = None
    block: tuple[Index, ...] | None = None
    words: tuple[WordRow, ...] = ()
    reads: tuple[RangeRow, ...] = ()
    writes: tuple[RangeRow, ...] = ()
    launch: Index | None = None
    stack: Index | None = None
    after: tuple[Index, ...] = ()
    inner: tuple[DeviceRow, ...] = ()
    note: Index | None = None


class GraphRow(msgspec.Struct, frozen=True):
    """A captured graph; a node's number is its place in `nodes`.

    Attributes
    ----------
    nodes
        Launches, as the program made them.
    device
        What they became; None where each launch is a node after the one before.
    unread
        Why `device` is not known, where it should be; else empty.
    """

    serial: int
    name: str
    replays: int
    nodes: tuple[LaunchRow, ...] = ()
    device: tuple[DeviceRow, ...] | None = None
    unread: str = ""


class GuardRow(msgspec.Struct, frozen=True, array_like=True):
    """A guard that stands: the part that every check reads, and the whole."""

    buffer: int
    side: Side
    near_start: int
    near_nbytes: int
    start: int
    nbytes: int


class ReplayRow(msgspec.Struct, frozen=True, array_like=True):
    """A replay that began: `order` numbers checkpoints and host writes."""

    graph: int
    replay: int
    time: float
    order: int


class StoreRow(msgspec.Struct, frozen=True, array_like=True):
    """What a node of a host graph stored when it last ran: pairs of addresses, the second one past the end; not `exact`
    where one pair stands around more than could be kept."""

    graph: int
    node: Index
    ranges: tuple[tuple[Index, Index], ...]
    exact: bool = True


class WrittenRow(msgspec.Struct, frozen=True, array_like=True):
    """What a node changed of a buffer; see `shadowgraph.model.write_sets.Written`."""

    node: Index
    buffer: int
    first: int
    last: int
    count: Index


class WriteSetRow(msgspec.Struct, frozen=True, array_like=True):
    """A graph's latest write sets: buffers that were looked at, those for which there was no room, changes dropped."""

    graph: int
    replay: int
    written: tuple[WrittenRow, ...] = ()
    looked_at: Index = 0
    left_out: Index = 0
    dropped: Index = 0


class PayloadRow(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of memory, kept in the tensor `tensor` of the file.

    Attributes
    ----------
    buffer
        Serial of the buffer whose bytes they are; `offset` counts from its start and is negative in its head guard.
    crc32
        Of the bytes.
    name, dtype, graph
        For `Why.SHADOW`: the best owner path, the buffer's dtype, and the graph whose replay was about to begin.
    """

    tensor: str
    start: int
    nbytes: int
    buffer: int
    offset: int
    why: Why
    crc32: int
    name: str | None = None
    dtype: str | None = None
    graph: int | None = None


class UnreadRow(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that should be here and could not be read."""

    start: int
    nbytes: int
    buffer: int
    why: Why
    reason: str
    name: str = ""


class LeftOut(msgspec.Struct, frozen=True):
    """What is not here on purpose: to keep the size, or the contents private. `nbytes` is 0 where no size is known."""

    what: str
    count: int
    nbytes: int
    reason: str


class Manifest(msgspec.Struct, frozen=True):
    """Everything but the bytes.

    Attributes
    ----------
    form
        `form_of_manifest` of the writer. A reader of the same form demands the exact text that it would write.
    argv
        The command line, values of options that name a key, token or password left out.
    versions, packages
        Of what a report names; of other packages that were loaded.
    facts
        What the report is made of, `last_values` aside: those are payloads.
    buffers, freed
        Live buffers and the history of freed ones, in order of serial and of free.
    strings, frames, stacks
        Texts; (file, line, function) with texts by index; tuples of frames by index, innermost first.
    alias_groups
        Sets of `owners`, by index, that share bytes.
    launches
        The journal, oldest first.
    stores, write_sets
        What nodes wrote: as seen of the last replay on the host, and as the last probed replay showed it.
    input_rows
        What the rows of static inputs held when the last replays began, and what led to a finding.
    """

    reason: str
    time: float
    pid: int
    versions: dict[str, str]
    facts: RunFacts
    form: str = ""
    argv: tuple[str, ...] = ()
    settings: dict[str, bool | int | str | None] = {}
    packages: dict[str, str] = {}
    redacted: bool = False
    strings: tuple[str, ...] = ()
    frames: tuple[tuple[Index, int, Index], ...] = ()
    stacks: tuple[tuple[Index, ...], ...] = ()
    buffers: tuple[BufferRow, ...] = ()
    freed: tuple[BufferRow, ...] = ()
    owners: tuple[OwnerRow, ...] = ()
    alias_groups: tuple[tuple[Index, ...], ...] = ()
    graphs: tuple[GraphRow, ...] = ()
    guards: tuple[GuardRow, ...] = ()
    replays: tuple[ReplayRow, ...] = ()
    launches: tuple[JournalRow, ...] = ()
    payloads: tuple[PayloadRow, ...] = ()
    unread: tuple[UnreadRow, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    stores: tuple[StoreRow, ...] = ()
    write_sets: tuple[WriteSetRow, ...] = ()
    input_rows: tuple[InputRows, ...] = ()


@cache
def form_of_manifest() -> str:
    """A short hash of the manifest's JSON schema, which changes with every added field, also of a kind of finding."""
    details = [kind.detail for kind in kinds() if kind.detail is not None]

    def facts(_: type) -> dict[str, Any]:
        return {"anyOf": [detail.__name__ for detail in details]}

    parts = msgspec.json.schema_components([Manifest, *details], schema_hook=facts)
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:12]

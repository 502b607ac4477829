"""A dump's manifest: live records and rows, each field as documented in ``docs/dumps.md``.

Records that have a life outside of dumps (`Buffer`, `Launch`, `DeviceNode`, ...) stand here as they are; what follows
from them, or from several, has a row of its own. `shadowgraph.dumps.rows` makes JSON of a manifest: `Rows`, with
tens of thousands of entries, become arrays that refer to texts, frames and stacks by index, so that a ledger of 100,000
buffers stays small. Within one schema number, fields are only added at the end of a row, each with a default, and
enumerations get no new values.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeVar

import msgspec

from shadowgraph.model.buffers import Buffer
from shadowgraph.model.device_nodes import DeviceNode
from shadowgraph.model.guards import Side
from shadowgraph.model.journal import Ran, Replayed
from shadowgraph.model.launches import Launch
from shadowgraph.model.owners import Owner
from shadowgraph.model.row_history import InputRows
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.model.saved_fields import Text
from shadowgraph.model.write_sets import Written

FORMAT = "shadowgraph.dump"
VERSION = 2
SCHEMA = f"{FORMAT}/{VERSION}"

MOST_PAYLOADS = 16_384  # each takes about 100 bytes of header, and some microseconds of the program's time

T = TypeVar("T")

Index = Annotated[int, msgspec.Meta(ge=0)]
Offset = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]  # from the start of a buffer
ROWS = "rows"
Rows = Annotated[tuple[T, ...], ROWS]  # records that are encoded with the manifest's texts and stacks by index
DEPTH = 16  # levels of child graphs; deeper nodes are counted and left out


class Why(StrEnum):
    """Why bytes are in a dump, the most useful first."""

    FINDING = "finding"  # around the damage of a finding, guards included, at the time of the dump
    SHADOW = "shadow"  # values mirrored in host memory, from when the buffer's graph last began to replay
    WHOLE = "whole"  # a small buffer
    WINDOW = "window"  # the first or last bytes of a large buffer


class TenantRow(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that a capture allocated from its pool, before the launch `before`; `buffer` is the serial of its own
    entry in the ledger, None where it has none."""

    before: Index
    start: Index
    nbytes: Index
    dtype: Text
    shape: tuple[int, ...] = ()
    itemsize: int = 1
    buffer: int | None = None


class GraphRecord(msgspec.Struct, frozen=True):
    """A captured graph at the time of the dump; a node's number is its place in `nodes`.

    Attributes
    ----------
    nodes
        Launches, as the program made them.
    device
        What they became; None where each launch is a node after the one before.
    unread
        Why `device` is not known, where it should be; else empty.
    began, ended
        The ledger's serials at the begin and the end of its capture; 0 where that was not seen.
    tenants
        What it allocated, in order.
    """

    serial: int
    name: str
    replays: int
    nodes: tuple[Launch, ...] = ()
    device: tuple[DeviceNode, ...] | None = None
    unread: str = ""
    began: int = 0
    ended: int = 0
    tenants: tuple[TenantRow, ...] = ()


class GuardRow(msgspec.Struct, frozen=True, array_like=True):
    """A guard that stands: the part that every check reads, and the whole."""

    buffer: int
    side: Side
    near_start: int
    near_nbytes: int
    start: int
    nbytes: int


class StoreRow(msgspec.Struct, frozen=True, array_like=True):
    """What a node of a host graph stored when it last ran: pairs of addresses, the second one past the end; not `exact`
    where one pair stands around more than could be kept."""

    graph: int
    node: Index
    ranges: tuple[tuple[Index, Index], ...]
    exact: bool = True


class WriteSetRow(msgspec.Struct, frozen=True, array_like=True):
    """A graph's latest write sets: buffers that were looked at, those for which there was no room, changes dropped."""

    graph: int
    replay: int
    written: tuple[Written, ...] = ()
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
    alias_groups
        Sets of `owners`, by index, that share bytes.
    launches
        The last ones that ran, oldest first.
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
    buffers: Rows[Buffer] = ()
    freed: Rows[Buffer] = ()
    owners: Rows[Owner] = ()
    alias_groups: tuple[tuple[Index, ...], ...] = ()
    graphs: Rows[GraphRecord] = ()
    guards: tuple[GuardRow, ...] = ()
    replays: Rows[Replayed] = ()
    launches: Rows[Ran] = ()
    payloads: tuple[PayloadRow, ...] = ()
    unread: tuple[UnreadRow, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    stores: tuple[StoreRow, ...] = ()
    write_sets: Rows[WriteSetRow] = ()
    input_rows: tuple[InputRows, ...] = ()

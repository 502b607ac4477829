"""Findings: frozen data with no prose. `reports` turns them into words, `to_dict` into a versioned document."""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Any

import msgspec

from shadowgraph.common.html_repr import HtmlRepr
from shadowgraph.model.guards import Side
from shadowgraph.model.overrun_extents import Origin, Reached
from shadowgraph.model.phases import Phase
from shadowgraph.model.probes import Search
from shadowgraph.model.stacks import Frame, Stack

SCHEMA = "shadowgraph.finding/1"
NAP = "nap"  # `Finding.detected_at` of what replays that passed unseen had left


class Kind(StrEnum):
    """The kinds of finding, by code."""

    SG101 = "out-of-bounds write"
    SG102 = "in-graph mutation"
    SG103 = "stale rows"
    SG104 = "dangling pointer"
    SG105 = "pool clobber"
    SG106 = "foreign write"
    SG107 = "undefined influence"
    SG108 = "rebound input"
    SG109 = "invariant broken"
    SG110 = "host source recycled"
    SG111 = "host write in flight"
    SG112 = "graph race"
    SG113 = "headroom"


class Severity(StrEnum):
    """Whether a finding is a fault."""

    ERROR = "error"
    NOTE = "note"  # worth knowing, not a fault; never fails a run


class Status(StrEnum):
    """How sure the culprit is."""

    CONFIRMED = "confirmed"  # its own stores hit the bytes
    CANDIDATE = "candidate"  # it could have
    NOT_REPRODUCED = "not_reproduced"
    UNKNOWN = "unknown"


class BufferFacts(msgspec.Struct, frozen=True):
    """The buffer a finding is about. `name` is the shortest owner path, or the allocation line."""

    name: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    address: int
    serial: int
    role: str
    allocated: Stack


class ByteFacts(msgspec.Struct, frozen=True):
    """Which bytes. Offsets are relative to the buffer's start, inclusive, negative before it.

    Attributes
    ----------
    count
        Changed bytes; `ranges` up to 16 inclusive pairs of them, of `ranges_total`.
    distance
        Bytes from the buffer's edge to the nearest changed byte (0: adjacent, or inside).
    truncated
        The evidence reached the end of what was armed: there may be more.
    """

    first: int
    last: int
    count: int
    ranges: tuple[tuple[int, int], ...]
    ranges_total: int
    side: Side | None
    distance: int
    truncated: bool


class Argument(msgspec.Struct, frozen=True):
    """An argument of a kernel that points into memory.

    Attributes
    ----------
    argument, offset, name
        Position of the parameter, bytes from its start, its name where known.
    buffer, at
        What the buffer is called that it points into, and how many bytes from that buffer's start; `buffer` is empty
        for memory that nobody tracks.
    sureness
        How sure it is that the word is a pointer: ``high``, ``medium`` or ``low``.
    """

    argument: int
    offset: int
    name: str
    address: int
    buffer: str = ""
    at: int = 0
    sureness: str = "high"


class Culprit(msgspec.Struct, frozen=True):
    """The launch that did it. `node` is its index in the graph, None for an eager launch.

    Attributes
    ----------
    kernel
        Demangled name of the kernel that ran, where that is not `name` itself.
    arguments
        What the node's arguments point at.
    led_by
        The argument that leads to the damage: the nearest one into the damaged buffer. None when no argument points
        near it, or when arguments are not known.
    seen_in
        Number of the probed replay that showed it.
    search
        How it was searched for, where that replay's nodes could not be looked at one by one; else None.
    """

    status: Status
    kind: str | None = None
    name: str | None = None
    node: int | None = None
    file: str | None = None
    line: int | None = None
    stack: Stack = ()
    source: str | None = None
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    kernel: str | None = None
    arguments: tuple[Argument, ...] = ()
    led_by: Argument | None = None
    seen_in: int | None = None
    search: Search | None = None


class Neighbour(msgspec.Struct, frozen=True):
    """The buffer next to the damage by address. `gap`: bytes between the two buffers."""

    name: str
    side: Side
    gap: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


class Alias(msgspec.Struct, frozen=True):
    """Another owner of the same bytes, as an expression of the named buffer."""

    name: str
    relation: str


class RowOverrun(msgspec.Struct, frozen=True):
    """A row whose programs wrote past its end.

    Attributes
    ----------
    written_past, lost
        Elements written past the row's declared width, and how many of them another row's program wrote too with
        another value: the one or the other is lost, by the order of the programs.
    into
        Rows that were hit, the table's number of rows standing for "past the end".
    rows
        The table's number of rows.
    """

    row: int
    width: int
    written_past: int
    lost: int
    into: tuple[int, ...]
    rows: int


class Reader(msgspec.Struct, frozen=True):
    """Who reads the bytes next: a graph's node, or the host at a line.

    Attributes
    ----------
    wrote
        What the host wrote what it had read into, where a graph reads that as indices or offsets.
    """

    kind: str
    name: str
    node: int | None = None
    file: str | None = None
    line: int | None = None
    wrote: str | None = None


class Window(msgspec.Struct, frozen=True):
    """Bytes around the damage: hexadecimal, `offset` relative to the buffer's start."""

    offset: int
    expected: str
    found: str


class Successor(msgspec.Struct, frozen=True):
    """A buffer that came after another: it has its bytes, or its name. `serial` is None for one that nobody tracks."""

    name: str
    address: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    serial: int | None = None
    allocated: Stack = ()


class DanglingDetail(msgspec.Struct, frozen=True):
    """How a graph uses a buffer that is gone, and who came after it.

    Attributes
    ----------
    access
        ``live-in`` (the graph reads the bytes before it writes them) or ``external-out`` (it only writes them).
    writes
        Whether the graph writes the bytes at all.
    fate
        ``freed``, or ``moved``: the storage lives on at another address or of another size.
    first, last
        The bytes that the graph was given, inclusive, relative to the buffer's start.
    victims
        Who has these bytes now, as far as known.
    replaced_by
        What the buffer's owner leads to now.
    """

    access: str
    writes: bool
    fate: str
    first: int
    last: int
    victims: tuple[Successor, ...] = ()
    replaced_by: Successor | None = None


class StaleRows(msgspec.Struct, frozen=True):
    """Rows that hold what was written for an older replay, both numbers included; which one, as far as known."""

    first: int
    last: int
    graph: str | None
    replay: int | None


class Staleness(msgspec.Struct, frozen=True):
    """Which of the rows that a graph reads were left as they were.

    Attributes
    ----------
    rows
        Rows that the graph reads.
    stale
        Those left from older replays.
    refreshed
        First and last of each stretch of rows that were written for this replay.
    padded
        Other inputs of the graph that were written for this replay in the stale rows.
    viewed
        What the buffer is called by has another shape, rows of which are not these.
    """

    rows: int
    stale: tuple[StaleRows, ...]
    refreshed: tuple[tuple[int, int], ...]
    padded: tuple[str, ...] = ()
    viewed: bool = False


class Rebinding(msgspec.Struct, frozen=True):
    """What host code refreshes in place of the memory that a graph reads.

    Attributes
    ----------
    attribute
        Path of the attribute that led to the graph's memory when it was captured.
    moved
        Whether it leads to other memory now.
    now
        The memory that holds what the graph should read, as far as known.
    planned
        Whether a plan says what the graph should read.
    """

    attribute: str
    moved: bool
    now: Successor | None = None
    planned: bool = False


class Batch(msgspec.Struct, frozen=True):
    """What a server was preparing, or had prepared, the replay for.

    Attributes
    ----------
    size, padded_to
        Requests in it, and the batch size that the graph was captured with.
    lengths
        Tokens of each request, where known.
    requests
        Their ids, where known. Nothing of what they say.
    """

    size: int
    padded_to: int
    lengths: tuple[int, ...] = ()
    requests: tuple[str, ...] = ()


class Finding(HtmlRepr, msgspec.Struct, frozen=True):
    """One (cause, buffer, side); a later confirmation is a new revision of the same id.

    Attributes
    ----------
    phase, graph, replay
        What ran when the bytes changed. Replays count from 1 for each graph; in prepare it is the coming one.
    detected_at
        The boundary at which it was seen; of `NAP`, phase, graph and replay say when it had happened at the latest.
    candidates
        Others that may have done it, or that did it too.
    window
        Bytes around the damage, as expected and as found.
    rule
        Of SG109: the rule, and the values that break it.
    confidence
        ``high``, ``medium`` or ``low``.
    id, revision, occurrences
        A number in this run, which of its versions this is, from 1, and how often it was seen.
    time
        Seconds since 1970, UTC.
    fingerprint
        A hash that stays the same between runs.
    continues
        The finding of the overrun that went on as far as this one's guard; then it is a note.
    reaches, reaches_total
        Of an overrun: up to 16 buffers that it went on to, the nearest and the furthest, in this order; of how many.
    """

    code: str
    kind: Kind
    severity: Severity
    phase: Phase
    graph: str | None
    replay: int | None
    detected_at: str
    buffer: BufferFacts
    culprit: Culprit
    bytes: ByteFacts | None = None
    candidates: tuple[Culprit, ...] = ()
    aliases: tuple[Alias, ...] = ()
    neighbour: Neighbour | None = None
    reader: Reader | None = None
    rows: tuple[RowOverrun, ...] = ()
    window: Window | None = None
    rule: str | None = None
    confidence: str = "high"
    occurrences: int = 1
    coverage: str = ""
    message: str = ""
    id: int = 0
    revision: int = 1
    time: float = 0.0
    pid: int = 0
    rank: int | None = None
    device: str = "cpu"
    stream: int | None = None
    fingerprint: str = ""
    schema: str = SCHEMA
    ending: DanglingDetail | None = None
    stale: Staleness | None = None
    batch: Batch | None = None
    rebound: Rebinding | None = None
    continues: Origin | None = None
    reaches: tuple[Reached, ...] = ()
    reaches_total: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain JSON types; fields as in ``docs/findings.md``."""
        document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))  # `to_builtins` leaves tuples
        return document

    @property
    def past_end(self) -> int:
        """Bytes past the buffer's end that were reached; 0 when none."""
        return max(0, self.bytes.last + 1 - self.buffer.nbytes) if self.bytes else 0


_INDEX = re.compile(r"\[[^\]]*\]|#\d+")


def fingerprint(finding: Finding) -> str:
    """A short hash that stays the same between runs: no addresses, sizes, serials or line numbers in it.

    Of a buffer's name only the last part counts, beside the function that allocated it: which of several owners comes
    first, or which of many like objects it is, may change from run to run.
    """
    buffer = finding.buffer
    own = _INDEX.sub("", buffer.name).rsplit(".", 1)[-1] if buffer.names else ""
    where = _place(buffer.allocated[0]) if buffer.allocated else f"{buffer.role} {buffer.dtype}"
    where = f"{where} {own}"
    culprit = finding.culprit.name or ""
    place = _place(finding.culprit.stack[0]) if finding.culprit.stack else ""
    side = finding.bytes.side if finding.bytes else ""
    rule = (finding.rule or "").split(": ", 1)[0].split("(", 1)[0]  # without its numbers and the values that broke it
    text = "|".join((finding.code, str(side), where, culprit, place, rule))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]


def _place(frame: Frame) -> str:
    if frame.file.startswith("In["):
        return frame.function  # a cell's number changes with the order of execution
    return f"{frame.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.function}"


def json_schema() -> dict[str, Any]:
    """The JSON schema of `Finding.to_dict`."""
    return msgspec.json.schema(Finding)

"""Findings: frozen data without prose. The renderers turn them into text, `to_dict` into a versioned JSON document.

No torch and no lock: a finding is immutable, so that any thread may read it.
"""

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
NAP = "nap"  # `Finding.detected_at` of damage left by replays that passed unchecked


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
    """Whether a finding is an error or a note."""

    ERROR = "error"
    NOTE = "note"  # worth knowing, not an error; never fails a run


class Status(StrEnum):
    """The certainty of the culprit."""

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
    """The damaged bytes. Offsets are relative to the buffer's start, inclusive, negative before it.

    Attributes
    ----------
    count
        Changed bytes; `ranges` lists up to 16 inclusive pairs of `ranges_total`.
    distance
        Bytes from the buffer's edge to the nearest changed byte (0: adjacent, or inside).
    truncated
        The damage reaches the end of the guard: there may be more.
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
    """A pointer argument of a kernel.

    Attributes
    ----------
    argument, offset, name
        Position of the parameter, bytes from its start, its name where known.
    buffer, at
        Name of the buffer that it points into, and the byte offset from that buffer's start; `buffer` is empty
        for untracked memory.
    sureness
        Confidence that the word is a pointer: ``high``, ``medium`` or ``low``.
    """

    argument: int
    offset: int
    name: str
    address: int
    buffer: str = ""
    at: int = 0
    sureness: str = "high"


class Culprit(msgspec.Struct, frozen=True):
    """The launch that caused the damage. `node` is its index in the graph, None for an eager launch.

    Attributes
    ----------
    kernel
        Demangled name of the kernel that ran, where it differs from `name`.
    arguments
        The node's pointer arguments.
    led_by
        The argument nearest to the damage that points into the damaged buffer. None when no argument points
        near it, or when the arguments are unknown.
    seen_in
        Number of the probed replay that showed it.
    search
        The search that found it, where that replay's nodes could not be checked one by one; else None.
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
    """Another owner of the same bytes, as an expression on the named buffer."""

    name: str
    relation: str


class RowOverrun(msgspec.Struct, frozen=True):
    """A row whose Triton programs wrote past its end.

    Attributes
    ----------
    written_past, lost
        Elements written past the row's declared width, and how many of them another row's program wrote too, with
        another value: the order of the programs decides which of the two is lost.
    into
        Rows that were hit; the table's number of rows stands for "past the end".
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
    """The next reader of the bytes: a node of a graph, or a host line.

    Attributes
    ----------
    wrote
        The buffer that the host wrote the values into, where a graph reads it as indices or offsets.
    """

    kind: str
    name: str
    node: int | None = None
    file: str | None = None
    line: int | None = None
    wrote: str | None = None


class Window(msgspec.Struct, frozen=True):
    """Bytes around the damage: hexadecimal; `offset` is relative to the buffer's start."""

    offset: int
    expected: str
    found: str


class Successor(msgspec.Struct, frozen=True):
    """A buffer that took over the bytes, or the name, of another one. `serial` is None for an untracked one."""

    name: str
    address: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    serial: int | None = None
    allocated: Stack = ()


class DanglingDetail(msgspec.Struct, frozen=True):
    """Details of a dangling pointer: the graph's accesses, the buffers that now occupy the bytes, the owner's target.

    Attributes
    ----------
    access
        ``live-in`` (the graph reads the bytes before it writes them) or ``external-out`` (it only writes them).
    writes
        Whether the graph writes the bytes at all.
    fate
        ``freed``, or ``moved``: the storage lives on at another address or with another size.
    first, last
        The bytes that the graph captured, inclusive, relative to the buffer's start.
    victims
        Known buffers that now occupy these bytes.
    replaced_by
        The buffer that the former owner refers to now.
    """

    access: str
    writes: bool
    fate: str
    first: int
    last: int
    victims: tuple[Successor, ...] = ()
    replaced_by: Successor | None = None


class StaleRows(msgspec.Struct, frozen=True):
    """Rows (both numbers included) with values written for an older replay; `graph` and `replay` name it if known."""

    first: int
    last: int
    graph: str | None
    replay: int | None


class Staleness(msgspec.Struct, frozen=True):
    """The stale rows of the input that a graph reads.

    Attributes
    ----------
    rows
        Rows that the graph reads.
    stale
        Rows left from older replays.
    refreshed
        First and last row of each stretch that was written for this replay.
    padded
        Other inputs of the graph whose corresponding rows were written for this replay.
    viewed
        The view that names the buffer has another shape, with other rows.
    """

    rows: int
    stale: tuple[StaleRows, ...]
    refreshed: tuple[tuple[int, int], ...]
    padded: tuple[str, ...] = ()
    viewed: bool = False


class Rebinding(msgspec.Struct, frozen=True):
    """A rebound input: host code refreshes other memory than the graph reads.

    Attributes
    ----------
    attribute
        Path of the attribute that referred to the graph's memory at its capture.
    moved
        Whether the attribute refers to other memory now.
    now
        The memory that holds the values that the graph should read, if known.
    planned
        Whether a plan determines the values that the graph should read.
    """

    attribute: str
    moved: bool
    now: Successor | None = None
    planned: bool = False


class Batch(msgspec.Struct, frozen=True):
    """The batch that a server was preparing, or had prepared, the replay for.

    Attributes
    ----------
    size, padded_to
        Number of requests, and the batch size that the graph was captured with.
    lengths
        Token count of each request, where known.
    requests
        Request ids, where known. No request contents.
    """

    size: int
    padded_to: int
    lengths: tuple[int, ...] = ()
    requests: tuple[str, ...] = ()


class Finding(HtmlRepr, msgspec.Struct, frozen=True):
    """One finding for a cause, buffer and side; a later confirmation is a new revision of the same id.

    Attributes
    ----------
    phase, graph, replay
        The phase in which the bytes changed. Replays count from 1 for each graph; in prepare it is the next one.
    detected_at
        The boundary at which it was seen; with `NAP`, phase, graph and replay give the latest possible time.
    candidates
        Other possible culprits, and further culprits.
    window
        Expected and found bytes around the damage.
    rule
        For SG109: the rule, and the values that break it.
    confidence
        ``high``, ``medium`` or ``low``.
    id, revision, occurrences
        Number in this run, version of the finding from 1, and how often it was seen.
    time
        Seconds since 1970, UTC.
    fingerprint
        A hash that stays the same between runs.
    continues
        The finding of the overrun that reached this one's guard; then this one is a note.
    reaches, reaches_total
        For an overrun: up to 16 buffers that it reached, the nearest and the furthest in this order, and the total.
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
        """How many bytes past the buffer's end the damage reaches; 0 when none."""
        return max(0, self.bytes.last + 1 - self.buffer.nbytes) if self.bytes else 0


_INDEX = re.compile(r"\[[^\]]*\]|#\d+")


def fingerprint(finding: Finding) -> str:
    """A short hash that stays the same between runs: it includes no addresses, sizes, serials or line numbers.

    Of a buffer's name only the last part counts, beside the function that allocated it: which of several owners comes
    first, or which of many similar objects it is, may change from run to run.
    """
    buffer = finding.buffer
    own = _INDEX.sub("", buffer.name).rsplit(".", 1)[-1] if buffer.names else ""
    where = _place(buffer.allocated[0]) if buffer.allocated else f"{buffer.role} {buffer.dtype}"
    where = f"{where} {own}"
    culprit = finding.culprit.name or ""
    place = _place(finding.culprit.stack[0]) if finding.culprit.stack else ""
    side = finding.bytes.side if finding.bytes else ""
    rule = (finding.rule or "").split(": ", 1)[0].split("(", 1)[0]  # without numbers and offending values
    text = "|".join((finding.code, str(side), where, culprit, place, rule))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]


def _place(frame: Frame) -> str:
    if frame.file.startswith("In["):
        return frame.function  # a cell's number changes with the order of execution
    return f"{frame.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.function}"


def json_schema() -> dict[str, Any]:
    """The JSON schema of `Finding.to_dict`."""
    return msgspec.json.schema(Finding)

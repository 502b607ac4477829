"""Findings: frozen data without prose. The renderers turn them into text, `to_dict` into a versioned JSON document.

A finding is a header (what, where, when, by what) and the facts of its kind, a `Detail`. No torch and no lock: findings
are immutable, so that any thread may read them.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Any

import msgspec

from shadowgraph.common.html_repr import HtmlRepr
from shadowgraph.model.guards import Side
from shadowgraph.model.kinds import Detail, kind_of, kinds
from shadowgraph.model.overrun_extents import CausedBy, Origin
from shadowgraph.model.phases import Phase
from shadowgraph.model.probes import Search
from shadowgraph.model.redaction import Kept, KernelName, OwnerPath
from shadowgraph.model.stacks import Frame, Stack
from shadowgraph.model.steps import StepFacts

SCHEMA = "shadowgraph.finding/2"


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
    """The buffer a finding is about. `name` is the shortest owner path, or the allocation line.

    Attributes
    ----------
    allocated_source
        The text of the innermost line of `allocated`; empty where it could not be read.
    view
        The expression on `name` for the part that the finding is about, such as ``[2, 0:8]``; empty for the whole.
    """

    name: OwnerPath
    names: tuple[OwnerPath, ...]
    shape: Kept[tuple[int, ...]]
    dtype: Kept[str]
    nbytes: Kept[int]
    address: Kept[int]
    serial: Kept[int]
    role: Kept[str]
    allocated: Kept[Stack]
    allocated_source: str = ""
    view: Kept[str] = ""


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

    first: Kept[int]
    last: Kept[int]
    count: Kept[int]
    ranges: Kept[tuple[tuple[int, int], ...]]
    ranges_total: Kept[int]
    side: Side | None
    distance: Kept[int]
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

    argument: Kept[int]
    offset: Kept[int]
    name: Kept[str]
    address: Kept[int]
    buffer: OwnerPath = ""
    at: Kept[int] = 0
    sureness: Kept[str] = "high"


class StorePlace(msgspec.Struct, frozen=True):
    """A store of a kernel that hit the bytes; known on the host alone.

    Attributes
    ----------
    program
        The program of the grid; None where several stores hit the bytes and which of them did the damage is not known.
    line
        The line of the kernel.
    text
        The text of that line; empty where it could not be read.
    """

    program: Kept[tuple[int, int, int] | None]
    line: Kept[Frame]
    text: str = ""


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
    learnt_from
        The graph in whose capture the stack of this node's kernel was seen, where it was not this graph's own.
    launched_source
        The text of the innermost line of `stack`; empty where it could not be read.
    bounds
        Of a writer that was not seen: the program's lines at the last check before the damage and at the first one
        after it; empty where these are not known.
    stored_by
        The first of its stores that hit the bytes, where its stores are known.
    """

    status: Status
    kind: Kept[str | None] = None
    name: KernelName | None = None
    node: Kept[int | None] = None
    file: Kept[str | None] = None
    line: Kept[int | None] = None
    stack: Kept[Stack] = ()
    source: Kept[str | None] = None
    grid: Kept[tuple[int, ...] | None] = None
    block: Kept[tuple[int, ...] | None] = None
    kernel: KernelName | None = None
    arguments: tuple[Argument, ...] = ()
    led_by: Argument | None = None
    seen_in: Kept[int | None] = None
    search: Kept[Search | None] = None
    learnt_from: Kept[str | None] = None
    launched_source: str = ""
    bounds: Kept[Stack] = ()
    stored_by: StorePlace | None = None


class Neighbour(msgspec.Struct, frozen=True):
    """The buffer next to the damage by address. `gap`: bytes between the two buffers."""

    name: OwnerPath
    side: Side
    gap: Kept[int]
    nbytes: Kept[int]
    dtype: Kept[str]
    shape: Kept[tuple[int, ...]]


class Alias(msgspec.Struct, frozen=True):
    """Another owner of the same bytes, as an expression on the named buffer; where it `covers` that, the named buffer
    is the expression on this owner."""

    name: OwnerPath
    relation: Kept[str]
    covers: bool = False


class Reader(msgspec.Struct, frozen=True):
    """The next reader of the bytes: a node of a graph, or a host line.

    Attributes
    ----------
    kind
        ``host``, ``eager``, ``graph`` for a node of the finding's own graph, or another graph's name.
    wrote
        The buffer that the host wrote the values into, where a graph reads it as indices or offsets.
    """

    kind: Kept[str]
    name: Kept[str]
    node: Kept[int | None] = None
    file: Kept[str | None] = None
    line: Kept[int | None] = None
    wrote: OwnerPath | None = None


class Window(msgspec.Struct, frozen=True):
    """Bytes around the damage: hexadecimal, dropped by redaction; `offset` is relative to the buffer's start."""

    offset: int
    expected: str
    found: str


class Successor(msgspec.Struct, frozen=True):
    """A buffer that took over the bytes, or the name, of another one. `serial` is None for an untracked one."""

    name: OwnerPath
    address: Kept[int]
    nbytes: Kept[int]
    dtype: Kept[str]
    shape: Kept[tuple[int, ...]]
    serial: Kept[int | None] = None
    allocated: Kept[Stack] = ()


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
    tokens, padded_tokens
        Number of tokens that the replay computes, and for how many the graph was captured; 0 where not known.
    """

    size: Kept[int]
    padded_to: Kept[int]
    lengths: tuple[int, ...] = ()
    requests: tuple[str, ...] = ()
    tokens: Kept[int] = 0
    padded_tokens: Kept[int] = 0


class Sighting(msgspec.Struct, frozen=True):
    """A later sighting of a finding's cause: when it was, as the same fields of a finding tell."""

    phase: Phase
    graph: Kept[str | None]
    replay: Kept[int | None]
    step: StepFacts | None = None


class Finding(HtmlRepr, msgspec.Struct, frozen=True):
    """One finding for a cause, buffer and side; a later confirmation is a new revision of the same id.

    Attributes
    ----------
    phase, graph, replay
        The phase in which the bytes changed. Replays count from 1 for each graph; in prepare it is the next one. In
        phases `between` and `step` graph and replay are those before which it was found.
    step
        The step, where the graph is one of several pieces that are replayed in each.
    detected_at
        The boundary at which it was seen.
    candidates
        Other possible culprits, and further culprits.
    window
        Expected and found bytes around the damage.
    confidence
        ``high``, ``medium`` or ``low``.
    id, revision, occurrences
        Number in this run, version of the finding from 1, and how often it was seen.
    time
        Seconds since 1970, UTC.
    fingerprint
        A hash that stays the same between runs.
    continues
        The finding of the overrun that reached this one's guard: this one is part of that finding, and no finding or
        note of its own.
    caused_by
        The overrun that wrote over this finding's buffer, where this finding is a consequence of it.
    detail
        The facts of its kind; None where the kind has none.
    widest
        The later sighting that changed more than the first one: ranges and window are its own, `bytes.first`, `last`
        and `count` the extremes of all. None where the first sighting changed most.
    suppressed_by
        File and line of the suppression rule that hides it; empty for a finding that is shown.
    """

    code: Kept[str]
    severity: Severity
    phase: Phase
    graph: Kept[str | None]
    replay: Kept[int | None]
    detected_at: Kept[str]
    buffer: BufferFacts
    culprit: Culprit
    bytes: ByteFacts | None = None
    candidates: tuple[Culprit, ...] = ()
    aliases: tuple[Alias, ...] = ()
    neighbour: Neighbour | None = None
    reader: Reader | None = None
    window: Window | None = None
    confidence: Kept[str] = "high"
    occurrences: Kept[int] = 1
    id: Kept[int] = 0
    revision: Kept[int] = 1
    time: Kept[float] = 0.0
    pid: Kept[int] = 0
    rank: Kept[int | None] = None
    device: Kept[str] = "cpu"
    stream: Kept[int | None] = None
    fingerprint: Kept[str] = ""
    batch: Batch | None = None
    continues: Origin | None = None
    caused_by: CausedBy | None = None
    detail: Detail | None = None
    step: StepFacts | None = None
    widest: Sighting | None = None
    suppressed_by: Kept[str] = ""

    def __post_init__(self) -> None:
        wanted = kind_of(self.code).detail
        if self.detail is not None and (wanted is None or not isinstance(self.detail, wanted)):
            raise ValueError(f"a finding {self.code} with the facts of another kind")

    @property
    def kind(self) -> str:
        """The name of its kind."""
        return kind_of(self.code).title

    @property
    def message(self) -> str:
        """The finding in one line; the same text for the same facts."""
        return kind_of(self.code).message(self)

    def __repr__(self) -> str:
        return f"<Finding #{self.id}, {self.severity}: {self.message}>"

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain JSON types, with its message; fields as in ``docs/findings.md``."""
        document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))  # `to_builtins` leaves tuples
        return {"schema": SCHEMA, "kind": self.kind, "message": self.message, **document}

    @property
    def is_consequence(self) -> bool:
        """Whether another finding is known to be its cause, so that it is no independent error."""
        return self.caused_by is not None and self.caused_by.sure

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
    text = "|".join((finding.code, str(side), where, culprit, place, kind_of(finding.code).cause(finding)))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]


def _place(frame: Frame) -> str:
    if frame.file.startswith("In["):
        return frame.function  # a cell's number changes with the order of execution
    return f"{frame.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.function}"


def json_schema() -> dict[str, Any]:
    """The JSON schema of `Finding.to_dict`, with the facts of every kind."""
    details = [kind.detail for kind in kinds() if kind.detail is not None]
    place = "#/$defs/{name}"

    def facts(_: type) -> dict[str, Any]:
        return {"anyOf": [{"$ref": place.format(name=detail.__name__)} for detail in details]}

    (_, *_), parts = msgspec.json.schema_components([Finding, *details], schema_hook=facts, ref_template=place)
    head = parts["Finding"]["properties"]
    head.update(schema={"const": SCHEMA}, kind={"type": "string"}, message={"type": "string"})
    parts["Finding"]["required"] += ["schema", "kind", "message"]
    return {"$ref": place.format(name="Finding"), "$defs": parts}

"""First step of a dump: copies memory and gathers all facts on the host, while the program waits.

Runs in the thread that requests the dump. Data that must be consistent is copied under the debugger's lock, after the
device has finished its queued work; device nodes of graphs, which the driver may take long to list, are read after it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from shadowgraph.checks.stale_rows.check import StaleRows
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.common.settings import Settings
from shadowgraph.dumps.planning import Piece, Plan, plan_of
from shadowgraph.dumps.schema import LeftOut, Why
from shadowgraph.engines.losses import is_device_loss
from shadowgraph.localize.flight_recorder import Ran, Replayed, Stored
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.coverage import Coverage
from shadowgraph.model.device_nodes import DeviceNode
from shadowgraph.model.graphs import Graph, Node
from shadowgraph.model.guards import Guard
from shadowgraph.model.row_history import InputRows
from shadowgraph.model.run_facts import RunFacts, versions
from shadowgraph.model.write_sets import WriteSets
from shadowgraph.monitor.monitor import Monitor
from shadowgraph.tracking.foreign import drop_stale
from shadowgraph.tracking.names import Owner

_PACKAGES = ("triton", "cupy", "cuda-bindings", "sglang", "flashinfer-python", "transformers")
_SECRET = ("key", "token", "password", "secret")
_GIVE_UP = 3  # consecutive failed reads after which the rest is skipped


@dataclass(frozen=True, slots=True)
class Bytes:
    """A piece and its contents; `name` and `graph` for mirrored values."""

    piece: Piece
    data: bytes | memoryview
    name: str | None = None
    graph: int | None = None


@dataclass(frozen=True, slots=True)
class GraphNow:
    """A graph at the time of the dump; `device` is None when each launch is one node."""

    serial: int
    name: str
    replays: int
    nodes: tuple[Node, ...]
    device: tuple[DeviceNode, ...] | None = None
    unread: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """A piece that belongs in the dump, and why it could not be read."""

    piece: Piece
    reason: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Collected:
    """All contents of a dump; independent of the device, and no longer changing."""

    reason: str
    settings: Settings
    facts: RunFacts
    live: tuple[Buffer, ...]
    freed: tuple[Buffer, ...]
    owners: tuple[Owner, ...]
    graphs: tuple[GraphNow, ...]
    guards: tuple[Guard, ...]
    replays: tuple[Replayed, ...]
    launches: tuple[Ran, ...]
    bytes: tuple[Bytes, ...] = ()
    unread: tuple[Unread, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    stored: dict[tuple[int, int], Stored] = field(default_factory=dict)
    write_sets: dict[int, WriteSets] = field(default_factory=dict)
    input_rows: tuple[InputRows, ...] = ()
    redacted: bool = False
    time: float = field(default_factory=time.time)
    pid: int = field(default_factory=os.getpid)
    argv: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)


def collect(work: Monitor, facts: Callable[[], RunFacts], reason: str, limit: int, redact: bool) -> Collected:
    """Gather all contents of a dump. A lost device is not read.

    Parameters
    ----------
    facts
        Returns the facts of a report.
    limit
        Largest number of bytes of memory to copy.
    redact
        Copy no memory contents.
    """
    drop_stale(work.context.ledger)
    work.context.names.refresh()
    collected, graphs = work.still(partial(_collect, work, facts, reason, limit, redact))
    return replace(collected, graphs=tuple(map(_with_nodes, collected.graphs, graphs)))


def _collect(
    work: Monitor, facts: Callable[[], RunFacts], reason: str, limit: int, redact: bool
) -> tuple[Collected, list[Graph]]:
    """Everything except the device nodes of the graphs, and these graphs."""
    context = work.context
    known = [*work.book.findings, *work.book.notes]
    live = tuple(context.ledger)
    plan = Plan() if redact else plan_of(known, live, work.settings.dump_whole, limit)
    read, unread = _read(work, plan)
    mirrored = [] if redact else _mirrored(work)
    launches, replays = work.flight_recorder.taken()
    graphs = list(context.graphs.values())
    collected = Collected(
        reason=reason,
        settings=work.settings,
        facts=_facts(work, facts),
        live=live,
        freed=context.ledger.freed,
        owners=tuple(context.names.living()),
        graphs=tuple(GraphNow(g.serial, g.name, g.replays, tuple(g.nodes)) for g in graphs),
        guards=work.guards(),
        replays=replays,
        launches=launches,
        bytes=tuple(sorted([*read, *mirrored], key=lambda b: _ORDER[b.piece.why])),
        unread=tuple(unread),
        left_out=tuple(plan.left_out),
        stored=dict(work.flight_recorder.stored),
        write_sets=dict(work.locator.write_sets),
        input_rows=_input_rows(work),
        redacted=redact,
        argv=() if redact else _argv(),
        versions=versions(),
        packages=_packages(),
    )
    return collected, graphs


def _with_nodes(now: GraphNow, graph: Graph) -> GraphNow:
    """A graph with its device nodes, where readable: a failure to read them must not cost the dump."""
    device, unread = None, ""
    try:
        device = graph.read_nodes
    except Exception as error:
        unread = first_line(error)
        internal_errors.note("dump", error)
    return replace(now, device=device, unread=unread or graph.unread)


_ORDER = {why: place for place, why in enumerate(Why)}


def _read(work: Monitor, plan: Plan) -> tuple[list[Bytes], list[Unread]]:
    """Every piece of a plan, read or with the reason why not."""
    unread = [Unread(piece, "its memory is not there any more", _name(work, piece)) for piece in plan.gone]
    lost = work.lost or work.context.engine.lost
    if lost is not None:
        return [], unread + [Unread(piece, lost, _name(work, piece)) for piece in plan.pieces]
    try:
        views = work.context.engine.read_many([piece.where for piece in plan.pieces])
        return [Bytes(piece, view) for piece, view in zip(plan.pieces, views, strict=True)], unread
    except Exception:  # neither one bad range nor a lack of memory for large reads must cost the other pieces
        read, failed = _read_singly(work, plan.pieces)
        return read, unread + failed


def _read_singly(work: Monitor, pieces: list[Piece]) -> tuple[list[Bytes], list[Unread]]:
    """Read pieces one by one. After several failures in a row the device counts as lost and is not read again."""
    read: list[Bytes] = []
    failed: list[Unread] = []
    row, reason, lost = 0, "", None
    for piece in pieces:
        if row < _GIVE_UP:
            try:
                read.append(Bytes(piece, work.context.engine.read(piece.where)))
                row = 0
                continue
            except Exception as error:
                row, reason = row + 1, first_line(error)
                lost = error if is_device_loss(error) else None
        failed.append(Unread(piece, reason, _name(work, piece)))
    if lost is not None and (row == _GIVE_UP or not read):
        work.lose(lost)
    return read, failed


def _mirrored(work: Monitor) -> list[Bytes]:
    """Values of buffers in host memory; does not touch the device."""
    return [
        Bytes(Piece(where, buffer, Why.SHADOW), data, work.context.names.name_of(buffer, where)[0], graph)
        for graph, buffer, where, data in work.shadows.mirrored()
    ]


def _input_rows(work: Monitor) -> tuple[InputRows, ...]:
    try:
        return tuple(work.checks[StaleRows].history())
    except Exception as error:  # other threads may change it meanwhile; dispensable in a dump
        internal_errors.note("dump", error)
        return ()


def _facts(work: Monitor, facts: Callable[[], RunFacts]) -> RunFacts:
    """The report's facts; at least the findings where not all can be computed."""
    try:
        return facts()
    except Exception as error:
        internal_errors.note("dump", error)
        return RunFacts(
            findings=work.book.findings,
            notes=work.book.notes,
            suppressed=work.book.suppressed,
            coverage=Coverage(0, 0, (), 0),
            graphs=(),
            faults=internal_errors.counts,
            guards_shrunk=0,
            guards_dropped=0,
            watches=(),
            lost=work.lost,
        )


def _name(work: Monitor, piece: Piece) -> str:
    return work.context.names.name_of(piece.buffer)[0]


def first_line(error: BaseException) -> str:
    """An exception's type and message in one line."""
    return f"{type(error).__name__}: {error}".split("\n", 1)[0]


def _argv() -> tuple[str, ...]:
    """The command line without values of options for keys and passwords."""
    shown: list[str] = []
    hide = False
    for word in sys.argv:
        option, equals, _ = word.partition("=")
        secret = option.startswith("-") and any(part in option.lower() for part in _SECRET)
        if hide and not word.startswith("-"):
            shown.append("...")
        else:
            shown.append(f"{option}=..." if secret and equals else word)
        hide = secret and not equals
    return tuple(shown)


def _packages() -> dict[str, str]:
    """Versions of loaded packages that a finding may depend on."""
    found = {}
    for name in _PACKAGES:
        if name.split("-", 1)[0] in sys.modules:
            with suppress(PackageNotFoundError):
                found[name] = version(name)
    return found

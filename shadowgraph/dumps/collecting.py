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
from copy import copy
from dataclasses import dataclass, fields
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from msgspec.structs import replace

from shadowgraph.checks.stale_rows.check import StaleRows
from shadowgraph.common.exception_text import summary
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.common.settings import Settings
from shadowgraph.dumps.planning import Piece, Plan, plan_of
from shadowgraph.dumps.schema import DEPTH, GraphRecord, Manifest, StoreRow, TenantRow, UnreadRow, Why, WriteSetRow
from shadowgraph.engines.losses import is_device_loss
from shadowgraph.model.coverage import Coverage
from shadowgraph.model.device_nodes import DeviceNode
from shadowgraph.model.graphs import Allocation, Graph
from shadowgraph.model.guards import Guard
from shadowgraph.model.row_history import InputRows
from shadowgraph.model.run_facts import RunFacts, versions
from shadowgraph.model.write_sets import WriteSets
from shadowgraph.monitor.monitor import Monitor
from shadowgraph.tracking.foreign import drop_stale

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
class Collected:
    """All contents of a dump; independent of the device, and no longer changing.

    Attributes
    ----------
    manifest
        Without the rows of `bytes` and `guards`, and without alias groups: these are made while the program runs on.
    """

    manifest: Manifest
    guards: tuple[Guard, ...] = ()
    bytes: tuple[Bytes, ...] = ()


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
    manifest = collected.manifest
    manifest = replace(manifest, graphs=tuple(map(_with_nodes, manifest.graphs, graphs)))
    return Collected(manifest, collected.guards, collected.bytes)


def _collect(
    work: Monitor, facts: Callable[[], RunFacts], reason: str, limit: int, redact: bool
) -> tuple[Collected, list[Graph]]:
    """Everything except the device nodes of the graphs, and these graphs."""
    context = work.context
    known = [*work.book.findings, *work.book.notes, *work.book.parts]
    live = tuple(context.ledger)
    plan = Plan() if redact else plan_of(known, live, work.settings.dump_whole, limit)
    read, unread = _read(work, plan)
    mirrored = [] if redact else _mirrored(work)
    launches, replays = work.flight_recorder.taken()
    graphs = list(context.graphs.values())
    manifest = Manifest(
        reason=reason,
        time=time.time(),
        pid=os.getpid(),
        argv=() if redact else _argv(),
        versions=versions(),
        packages=_packages(),
        settings=_settings(work.settings),
        redacted=redact,
        facts=_facts(work, facts),
        buffers=tuple(replace(buffer, freed_at=None) for buffer in live),  # the ledger's own go on changing
        freed=tuple(map(copy, context.ledger.freed)),
        owners=tuple(context.names.living()),
        graphs=tuple(map(_record, graphs)),
        replays=replays,
        launches=launches,
        unread=tuple(unread),
        left_out=tuple(plan.left_out),
        stores=tuple(StoreRow(*key, *stored) for key, stored in list(work.flight_recorder.stored.items())),
        write_sets=tuple(_write_sets(serial, sets) for serial, sets in list(work.locator.write_sets.items())),
        input_rows=_input_rows(work),
    )
    held = sorted([*read, *mirrored], key=lambda b: _ORDER[b.piece.why])
    return Collected(manifest, work.guards(), tuple(held)), graphs


def _record(graph: Graph) -> GraphRecord:
    """A graph without its device nodes."""
    launches = tuple(node.launch for node in graph.nodes)
    made = tuple(map(_tenant, graph.allocations))
    return GraphRecord(
        graph.serial, graph.name, graph.replays, launches, began=graph.began, ended=graph.ended, tenants=made
    )


def _tenant(made: Allocation) -> TenantRow:
    own = made.buffer.serial if made.buffer is not None else None
    return TenantRow(made.before, made.where.start, made.where.nbytes, made.dtype, made.shape, made.itemsize, own)


def _with_nodes(now: GraphRecord, graph: Graph) -> GraphRecord:
    """A graph with its device nodes, where readable: a failure to read them must not cost the dump."""
    device, unread = None, ""
    try:
        device = graph.read_nodes
    except Exception as error:
        unread = summary(error)
        internal_errors.note("dump", error)
    return replace(now, device=device and _shallow(device, DEPTH), unread=unread or graph.unread)


def _shallow(nodes: tuple[DeviceNode, ...], levels: int) -> tuple[DeviceNode, ...]:
    """Nodes with so many levels of child graphs inside."""
    return tuple(_without_depth(node, levels) if node.inner else node for node in nodes)


def _without_depth(node: DeviceNode, levels: int) -> DeviceNode:
    if levels:
        return replace(node, inner=_shallow(node.inner, levels - 1))
    note = f"{len(node.inner):,} inner nodes are too deep inside other graphs to be kept"
    return replace(node, inner=(), note=node.note or note)


def _write_sets(graph: int, sets: WriteSets) -> WriteSetRow:
    return WriteSetRow(graph, sets.replay, sets.written, len(sets.looked_at), len(sets.left_out), sets.dropped)


def _settings(settings: Settings) -> dict[str, bool | int | str | None]:
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {k: v if v is None or isinstance(v, (bool, int)) else str(v) for k, v in values.items()}


_ORDER = {why: place for place, why in enumerate(Why)}


def _read(work: Monitor, plan: Plan) -> tuple[list[Bytes], list[UnreadRow]]:
    """Every piece of a plan, read or with the reason why not."""
    unread = [_unread(work, piece, "its memory is not there any more") for piece in plan.gone]
    lost = work.lost or work.context.engine.lost
    if lost is not None:
        return [], unread + [_unread(work, piece, lost) for piece in plan.pieces]
    try:
        views = work.context.engine.read_many([piece.where for piece in plan.pieces])
        return [Bytes(piece, view) for piece, view in zip(plan.pieces, views, strict=True)], unread
    except Exception:  # neither one bad range nor a lack of memory for large reads must cost the other pieces
        read, failed = _read_singly(work, plan.pieces)
        return read, unread + failed


def _read_singly(work: Monitor, pieces: list[Piece]) -> tuple[list[Bytes], list[UnreadRow]]:
    """Read pieces one by one. After several failures in a row the device counts as lost and is not read again."""
    read: list[Bytes] = []
    failed: list[UnreadRow] = []
    row, reason, lost = 0, "", None
    for piece in pieces:
        if row < _GIVE_UP:
            try:
                read.append(Bytes(piece, work.context.engine.read(piece.where)))
                row = 0
                continue
            except Exception as error:
                row, reason = row + 1, summary(error)
                lost = error if is_device_loss(error) else None
        failed.append(_unread(work, piece, reason))
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
            parts=work.book.parts,
            suppressed=work.book.suppressed,
            suppressions=work.book.rule_counts,
            hidden=work.book.hidden,
            coverage=Coverage(0, 0, (), 0),
            graphs=(),
            faults=internal_errors.counts,
            guards_shrunk=0,
            guards_dropped=0,
            watches=(),
            lost=work.lost,
        )


def _unread(work: Monitor, piece: Piece, reason: str) -> UnreadRow:
    where, name = piece.where, work.context.names.name_of(piece.buffer)[0]
    return UnreadRow(where.start, where.nbytes, piece.buffer.serial, piece.why, reason, name)


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

"""Validation of a manifest beyond field types, so that its readers need no checks of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from shadowgraph.checks.kinds import kind_of
from shadowgraph.dumps.sane_history import require_history
from shadowgraph.dumps.sane_nodes import require_nodes
from shadowgraph.dumps.schema import BufferRow, LaunchRow, Manifest, View
from shadowgraph.model.findings import Finding

_LATEST = 253402300799.0  # the last second of the year 9999


def require_sane(manifest: Manifest) -> None:
    """Check every index against its table, and every time and window against its bounds.

    Raises
    ------
    ValueError
        At the first violation.
    """
    texts, frames, stacks = len(manifest.strings), len(manifest.frames), len(manifest.stacks)
    _below(texts, chain.from_iterable((file, function) for file, _, function in manifest.frames), "text")
    _below(frames, chain.from_iterable(manifest.stacks), "frame")
    _below(len(manifest.owners), chain.from_iterable(manifest.alias_groups), "owner")
    _require_buffers(chain(manifest.buffers, manifest.freed), texts, stacks)
    launches = list(_launches(manifest))
    _below(texts, (text for launch in launches for text in _texts(launch)), "text")
    _below(stacks, (launch.stack for launch in launches), "stack")
    _require_views(_views(manifest, launches), texts)
    for graph in manifest.graphs:
        require_nodes(graph, texts, stacks)
    if not 0 <= manifest.time <= _LATEST:
        raise ValueError("its time is none")
    require_history(manifest)
    for finding in (*manifest.facts.findings, *manifest.facts.notes):
        _require_finding(finding)


def _below(count: int, indices: Iterable[int], what: str) -> None:
    if max(indices, default=-1) >= count:
        raise ValueError(f"it names one {what} that is not there")


def _require_buffers(rows: Iterable[BufferRow], texts: int, stacks: int) -> None:
    for row in rows:
        if row.dtype >= texts or row.device >= texts or row.stack >= stacks or row.start < 0 or row.nbytes < 0:
            raise ValueError(f"buffer {row.serial} does not hold together")


def _launches(manifest: Manifest) -> Iterator[LaunchRow]:
    for graph in manifest.graphs:
        yield from graph.nodes
    for entry in manifest.launches:
        yield entry.launch


def _texts(launch: LaunchRow) -> Iterator[int]:
    yield launch.name
    yield from (pointer.argument for pointer in launch.pointers)
    if launch.source is not None:
        yield launch.source


def _views(manifest: Manifest, launches: Iterable[LaunchRow]) -> Iterator[View]:
    for launch in launches:
        yield from (pointer.view for pointer in launch.pointers)
    yield from (owner.view for owner in manifest.owners)


def _require_views(views: Iterable[View], texts: int) -> None:
    for view in views:
        if view.dtype >= texts or view.device >= texts or len(view.shape) != len(view.stride):
            raise ValueError("a view does not hold together")


def _require_finding(finding: Finding) -> None:
    window = finding.window
    if kind_of(finding.code).needs_bytes and finding.bytes is None:
        raise ValueError(f"finding {finding.id} has no bytes")
    if window is not None and len(bytes.fromhex(window.expected)) != len(bytes.fromhex(window.found)):
        raise ValueError(f"finding {finding.id} has windows of two sizes")

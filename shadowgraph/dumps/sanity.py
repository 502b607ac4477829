"""Validation of a manifest beyond field types, so that its readers need no checks of their own.

Indices of texts, frames and stacks are checked where records are made of rows: `shadowgraph.dumps.rows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from shadowgraph.checks.kinds import kind_of
from shadowgraph.dumps.sane_history import require_history
from shadowgraph.dumps.sane_nodes import require_nodes
from shadowgraph.dumps.schema import Manifest
from shadowgraph.model.findings import Finding
from shadowgraph.model.launches import Launch
from shadowgraph.model.views import TensorView

_LATEST = 253402300799.0  # the last second of the year 9999


def require_sane(manifest: Manifest) -> None:
    """Check every index against its list, and every time and window against its bounds.

    Raises
    ------
    ValueError
        At the first violation.
    """
    if max(chain.from_iterable(manifest.alias_groups), default=-1) >= len(manifest.owners):
        raise ValueError("it names one owner that is not there")
    for buffer in chain(manifest.buffers, manifest.freed):
        if buffer.start < 0 or buffer.nbytes < 0:
            raise ValueError(f"buffer {buffer.serial} does not hold together")
    if any(len(view.shape) != len(view.stride) for view in _views(manifest)):
        raise ValueError("a view does not hold together")
    for graph in manifest.graphs:
        require_nodes(graph)
    if not 0 <= manifest.time <= _LATEST:
        raise ValueError("its time is none")
    require_history(manifest)
    for finding in (*manifest.facts.damage, *manifest.facts.notes, *manifest.facts.hidden):
        _require_finding(finding)


def _views(manifest: Manifest) -> Iterator[TensorView]:
    for launch in _launches(manifest):
        yield from (pointer.view for pointer in launch.pointers)
    yield from (owner.view for owner in manifest.owners)


def _launches(manifest: Manifest) -> Iterator[Launch]:
    yield from chain.from_iterable(graph.nodes for graph in manifest.graphs)
    yield from (ran.launch for ran in manifest.launches)


def _require_finding(finding: Finding) -> None:
    window = finding.window
    if kind_of(finding.code).needs_bytes and finding.bytes is None:
        raise ValueError(f"finding {finding.id} has no bytes")
    if window is not None and len(bytes.fromhex(window.expected)) != len(bytes.fromhex(window.found)):
        raise ValueError(f"finding {finding.id} has windows of two sizes")

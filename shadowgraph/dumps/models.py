"""Conversion of manifest rows back to ledger buffers and graph models."""

from __future__ import annotations

from collections.abc import Iterable

from shadowgraph.dumps.device_rows import device_nodes_of
from shadowgraph.dumps.schema import BufferRow, GraphRow, LaunchRow, Manifest, View
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph, Node
from shadowgraph.model.launches import Launch, Pointer
from shadowgraph.model.stacks import Frame, Stack
from shadowgraph.model.views import TensorView

Stacks = tuple[Stack, ...]


def stacks_of(manifest: Manifest) -> Stacks:
    """Every stack, by index."""
    text = manifest.strings
    frames = [Frame(text[file], line, text[function]) for file, line, function in manifest.frames]
    return tuple(tuple(frames[frame] for frame in stack) for stack in manifest.stacks)


def buffers_of(manifest: Manifest, stacks: Stacks, rows: Iterable[BufferRow]) -> tuple[Buffer, ...]:
    """Buffers as the ledger had them; equal stacks share one object."""
    text = manifest.strings
    return tuple(
        Buffer(
            serial=row.serial,
            start=row.start,
            nbytes=row.nbytes,
            role=row.role,
            dtype=text[row.dtype],
            shape=row.shape,
            itemsize=row.itemsize,
            stack=stacks[row.stack],
            device=text[row.device],
            graph=row.graph,
            pool=row.pool,
            head_guard=row.head_guard,
            tail_guard=row.tail_guard,
            inexact=row.inexact,
            gap=row.gap,
            freed_at=row.freed_at,
        )
        for row in rows
    )


def graph_of(manifest: Manifest, stacks: Stacks, row: GraphRow) -> Graph:
    """A graph's model; its device nodes are built on first access."""
    launches = (launch_of(manifest, stacks, node) for node in row.nodes)
    graph = Graph(row.serial, row.name, (Node(index, launch) for index, launch in enumerate(launches)))
    graph.replays, graph.unread = row.replays, row.unread
    device = row.device
    if device is not None:
        graph.build_device_later(lambda: device_nodes_of(manifest.strings, stacks, device))
    return graph


def launch_of(manifest: Manifest, stacks: Stacks, row: LaunchRow) -> Launch:
    """A launch of a graph or of the journal."""
    text = manifest.strings
    pointers = tuple(Pointer(text[p.argument], view_of(manifest, p.view), p.access) for p in row.pointers)
    source = text[row.source] if row.source is not None else None
    return Launch(row.kind, text[row.name], pointers, stacks[row.stack], row.grid, source)


def view_of(manifest: Manifest, row: View) -> TensorView:
    """The memory layout of a tensor."""
    return TensorView(
        address=row.address,
        storage_address=row.storage_address,
        storage_nbytes=row.storage_nbytes,
        shape=row.shape,
        stride=row.stride,
        dtype=manifest.strings[row.dtype],
        itemsize=row.itemsize,
        device=manifest.strings[row.device],
    )

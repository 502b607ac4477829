"""Conversion of a graph's device nodes to manifest rows, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shadowgraph.dumps.schema import DeviceRow, RangeRow, WordRow
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.device_nodes import DeviceNode, Word
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Stack

DEPTH = 16  # levels of child graphs; deeper nodes are counted and left out


class Tables(Protocol):
    """Tables for texts and stacks, and the lookup of a buffer by address."""

    def text(self, text: str) -> int: ...

    def stack(self, stack: Stack) -> int: ...

    def holder(self, start: int, stop: int) -> Buffer | None: ...


def device_row(tables: Tables, node: DeviceNode, depth: int = 0) -> DeviceRow:
    """A node as a row."""
    note = node.note
    inner: tuple[DeviceRow, ...] = ()
    if depth < DEPTH:
        inner = tuple(device_row(tables, each, depth + 1) for each in node.inner)
    elif node.inner:
        note = note or f"{len(node.inner):,} inner nodes are too deep inside other graphs to be kept"
    return DeviceRow(
        node.kind,
        tables.text(node.name),
        node.grid,
        node.block,
        tuple(_word(tables, word) for word in node.words),
        tuple(_range(tables, where) for where in node.reads),
        tuple(_range(tables, where) for where in node.writes),
        node.launch,
        tables.stack(node.stack) if node.stack else None,
        node.after,
        inner,
        tables.text(note) if note else None,
    )


def device_nodes_of(texts: Sequence[str], stacks: Sequence[Stack], rows: Sequence[DeviceRow]) -> tuple[DeviceNode, ...]:
    """The nodes from which rows were made."""
    return tuple(_node(texts, stacks, index, row) for index, row in enumerate(rows))


def _word(tables: Tables, word: Word) -> WordRow:
    buffer = tables.holder(word.address, word.address)
    held = (buffer.serial, word.address - buffer.start) if buffer is not None else (None, 0)
    return WordRow(word.argument, word.offset, tables.text(word.name), word.address, word.sureness, *held)


def _range(tables: Tables, where: ByteRange) -> RangeRow:
    buffer = tables.holder(where.start, where.stop)
    held = (buffer.serial, where.start - buffer.start) if buffer is not None else (None, 0)
    return RangeRow(where.start, where.nbytes, *held)


def _node(texts: Sequence[str], stacks: Sequence[Stack], index: int, row: DeviceRow) -> DeviceNode:
    return DeviceNode(
        index=index,
        kind=row.kind,
        name=texts[row.name],
        grid=row.grid,
        block=row.block,
        words=tuple(
            Word(word.argument, word.offset, texts[word.name], word.address, word.sureness) for word in row.words
        ),
        reads=tuple(ByteRange(each.start, each.start + each.nbytes) for each in row.reads),
        writes=tuple(ByteRange(each.start, each.start + each.nbytes) for each in row.writes),
        launch=row.launch,
        stack=stacks[row.stack] if row.stack is not None else (),
        after=row.after,
        inner=device_nodes_of(texts, stacks, row.inner),
        note=texts[row.note] if row.note is not None else "",
    )

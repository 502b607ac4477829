"""Rows made of records: as documented, there and back, and with fields that a record gets later."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from dump_makers import guarded, parts_of

import shadowgraph as sg
from shadowgraph.dumps.collecting import collect
from shadowgraph.dumps.reader import read_dump
from shadowgraph.dumps.rows import RangeRow, RowTypes
from shadowgraph.dumps.schema import GraphRecord, WriteSetRow
from shadowgraph.dumps.tables import Holders, Kept, Tables, kept_in
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.device_nodes import DeviceNode, Word
from shadowgraph.model.journal import Ran, Replayed
from shadowgraph.model.launches import Launch, Pointer
from shadowgraph.model.owners import Owner
from shadowgraph.model.saved_fields import Absent, Place, Sparse, Text
from shadowgraph.model.stacks import Frame, Stack
from shadowgraph.model.views import TensorView
from shadowgraph.model.write_sets import Written

T = TypeVar("T", bound=msgspec.Struct)
ROOT = Path(__file__).resolve().parents[2]
PAGE = " ".join((ROOT / "docs" / "dumps.md").read_text().split())
DOCUMENTED = {
    Buffer: r"`buffers`, `freed` \| rows `([^`]+)`",
    Owner: r"`owners` \| rows `([^`]+)`",
    GraphRecord: r"`graphs` \| `([^`]+)`",
    Replayed: r"`replays` \| rows `([^`]+)`",
    Ran: r"`launches` \| rows `([^`]+)`",
    Launch: r"A \*launch\* is a row `([^`]+)`",
    Pointer: r"a \*pointer\* a row `([^`]+)`",
    TensorView: r"a \*view\* a row `([^`]+)`",
    DeviceNode: r"A \*device node\* is a row `([^`]+)`",
    Word: r"`words` \| rows `([^`]+)`",
    WriteSetRow: r"`write_sets` \| rows `([^`]+)`",
    Written: r"`written` rows `([^`]+)`",
}
EAGLE = ROOT / "notebooks" / "data" / "eagle_h200"


@pytest.mark.parametrize("record", DOCUMENTED, ids=lambda record: record.__name__)
def test_rows_are_as_documented(record: type[msgspec.Struct]) -> None:
    """A field that is put into the middle of a record would change every row after it."""
    found = re.search(DOCUMENTED[record], PAGE)
    assert found is not None
    assert RowTypes().form(record).type.__struct_fields__ == tuple(found[1].split())


def test_ranges_are_as_documented() -> None:
    found = re.search(r"`reads`, `writes` \| rows `([^`]+)`", PAGE)
    assert found is not None
    assert RangeRow.__struct_fields__ == tuple(found[1].split())


class Inner(msgspec.Struct, frozen=True):
    """A record that may have others of its type inside."""

    index: Place
    name: Text
    inner: tuple[Inner, ...] = ()
    note: Sparse[Text] = ""


class Older(msgspec.Struct, frozen=True):
    """A record before it got more fields."""

    name: Text
    stack: Stack
    handle: Absent[int] = -1
    count: int = 0


class Newer(Older, frozen=True):
    """The same with more, each declared here and nowhere else."""

    by: Sparse[Stack] = ()
    kernel: Text | None = None
    inner: tuple[Inner, ...] = ()
    weight: float = 0.5
    held: Absent[bool] = False


STACK = (Frame("/srv/app.py", 7, "step"), Frame("/srv/main.py", 3, "main"))
NESTED = (Inner(0, "gemm", (Inner(0, "add", note="unread"), Inner(1, "gemm"))), Inner(1, "add"))


def written(record: msgspec.Struct) -> tuple[bytes, Kept]:
    """A record's row as JSON, and what it refers to."""
    tables, form = Tables(Holders((), ())), RowTypes().form(type(record))
    assert form.lower is not None
    row = msgspec.json.encode(form.lower(record, tables))
    return row, kept_in(tuple(tables.strings), tables.frames, tables.stacks)


def read(record: type[T], row: bytes, kept: Kept) -> T:
    form = RowTypes().form(record)
    assert form.lift is not None
    lifted: T = form.lift(msgspec.json.decode(row, type=form.type), kept, 0)
    return lifted


def test_a_record_comes_back_without_what_is_of_the_process() -> None:
    record = Newer("gemm", STACK, 99, 3, STACK[1:], "kernel", NESTED, 0.25, held=True)
    row, kept = written(record)
    assert sorted(kept.texts) == sorted({"gemm", "kernel", "add", "unread", *(f.file for f in STACK), "step", "main"})
    assert read(Newer, row, kept) == msgspec.structs.replace(record, handle=-1, held=False)
    assert b"99" not in row
    assert b"true" not in row


def test_equal_stacks_are_one_when_read() -> None:
    row, kept = written(Newer("gemm", STACK, by=(*STACK,)))
    again = read(Newer, row, kept)
    assert again.by is again.stack


def test_older_rows_lack_what_a_record_got_later_and_newer_ones_have_more() -> None:
    row, kept = written(Older("gemm", STACK, count=3))
    assert read(Newer, row, kept) == Newer("gemm", STACK, count=3)
    row, kept = written(Newer("gemm", STACK, count=3, kernel="kernel", inner=NESTED))
    assert read(Older, row, kept) == Older("gemm", STACK, count=3)


@pytest.mark.parametrize(
    "row", [b"[9,0,0]", b"[0,9,0]", b"[-1,0,0]", b"[0,-1,0]", b'["gemm",0,0]', b"[null,0,0]", b"[0]"]
)
def test_rows_that_refer_to_nothing_make_no_record(row: bytes) -> None:
    with pytest.raises((IndexError, msgspec.ValidationError)):
        read(Older, row, Kept(("gemm",), (STACK,)))


def test_rows_inside_rows_without_end_make_no_record() -> None:
    deep = b"[0,[" * 100_000 + b"]]" * 100_000
    with pytest.raises((RecursionError, msgspec.ValidationError)):
        read(Inner, deep, Kept(("gemm",), ()))


def test_a_dump_of_an_earlier_version_is_read() -> None:
    (path,) = EAGLE.glob("*.dump")
    raw = parts_of(path.read_bytes())[1]
    with read_dump(path) as dump:
        texts, stacks = raw["strings"], raw["stacks"]
        for buffer, row in zip(dump.buffers, raw["buffers"], strict=True):
            assert [buffer.serial, buffer.start, texts[row[4]], texts[row[8]]] == [
                *row[:2],
                buffer.dtype,
                buffer.device,
            ]
            assert [frame.line for frame in buffer.stack] == [raw["frames"][index][1] for index in stacks[row[7]]]
        for launch, (row, *_) in zip(dump.launches, raw["launches"], strict=True):
            assert (launch.name, len(launch.pointers)) == (texts[row[1]], len(row[3]))
            for pointer, (argument, _, view) in zip(launch.pointers, row[3], strict=True):
                holder = dump.names.holder(pointer.view)
                assert (pointer.argument, pointer.view.address) == (texts[argument], view[0])
                assert (holder and holder.serial) == view[8]
        assert raw["launches"]
        nodes = [node for graph in dump.graphs for node in graph.device_nodes]
        assert [node.name for node in nodes] == [texts[row[1]] for graph in raw["graphs"] for row in graph["device"]]
        words = [row for graph in raw["graphs"] for node in graph["device"] for row in node[4]]
        held = [dump.names.at(word.address) for node in nodes for word in node.words]
        assert [at and at[1] for at in held] == [None if row[5] is None else row[6] for row in words]
        assert any(row[5] is not None for row in words)


def test_what_was_collected_changes_no_more(tmp_path: Path) -> None:
    """Though the allocator moves guards and buffers are freed while the file is written."""
    with sg.debug() as debugger:
        table = guarded(debugger, 4)
        (live,) = [buffer for buffer in debugger.buffers if buffer.start == table.data_ptr()]
        collected = collect(debugger.monitor, debugger.facts, "test", 1 << 20, redact=False)
        (kept,) = [buffer for buffer in collected.manifest.buffers if buffer.serial == live.serial]
        before, guard = msgspec.structs.astuple(kept), live.tail_guard
        live.keep_back(16)
        assert live.tail_guard == guard - 16
        live.keep_back(0)
        del table
        assert not live.alive
    assert msgspec.structs.astuple(kept) == before
    assert kept.alive

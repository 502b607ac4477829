"""Tables of the ranges that check nodes compare, with the device's part played: what head and tail read there."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from shadowgraph.engines import graph_shadows
from shadowgraph.engines.base import NodePart
from shadowgraph.engines.cupy_engine import CupyEngine
from shadowgraph.engines.cupy_shadow import PART
from shadowgraph.engines.graph_shadows import MARK, PIECE, SHADOWED, GraphShadows
from shadowgraph.model.ranges import ByteRange


class Memory:
    """Memory that stands for that of a device; zeroed."""

    def __init__(self, nbytes: int) -> None:
        self._room = ctypes.create_string_buffer(nbytes + 64)
        self.nbytes = nbytes
        self.data = SimpleNamespace(ptr=-(-ctypes.addressof(self._room) // 64) * 64)


class Played:
    """A device on which launches run at once, and graphs with serials up to 9 carry check nodes."""

    def __init__(self) -> None:
        self.published: dict[int, tuple[int, int, int]] = {}  # by the address of a watch
        self.rooms: list[int] = []
        self.context, self.arming = SimpleNamespace(current=nullcontext), SimpleNamespace(ptr=7)
        self.behind = True  # the device has done what was launched
        self.events = 0  # that are in use
        kernels: Any = SimpleNamespace(set_shadows=self._set, empty_shadows=self._empty)
        self.shadows = GraphShadows(cast(Any, self), kernels, lambda graph: 1000 + graph if graph < 10 else None)

    def event(self) -> Any:
        self.events += 1
        return _Event(self)

    def done_with(self, event: Any) -> None:
        self.events -= 1

    def zeros(self, nbytes: int) -> Memory:
        self.rooms.append(nbytes)
        return Memory(nbytes)

    def write(self, address: int, rows: np.ndarray[Any, Any]) -> None:
        ctypes.memmove(address, rows.tobytes(), rows.nbytes)

    def _set(self, watch: int, table: int, rows: int, parts: int) -> None:
        self.published[watch] = table, rows, parts

    def _empty(self, table: int, first: int, count: int) -> None:
        for at in range(first, first + count):
            ctypes.memset(table + at * SHADOWED.itemsize, 0, 16)

    def table(self, graph: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Rows, parts and marks of a graph's table."""
        address, rows, parts = self.published.get(1000 + graph, (0, 0, 0))
        found = []
        for dtype, count in ((SHADOWED, rows), (PART, parts), (MARK, parts)):
            memory = (ctypes.c_uint8 * (dtype.itemsize * count)).from_address(address) if count else b""
            found.append(np.frombuffer(memory, dtype=dtype, count=count))
            address += dtype.itemsize * count
        return found[0], found[1], found[2]

    def head(self, graph: int, replay: int) -> None:
        for row in self.table(graph)[0]:
            if row["source"]:
                ctypes.memmove(int(row["shadow"]), int(row["source"]), int(row["nbytes"]))
                row["replay"] = replay

    def tail(self, graph: int, replay: int) -> list[int]:
        """Numbers of the ranges that have changed."""
        rows, parts, marks = self.table(graph)
        changed = set()
        for row in rows:
            if row["source"] and row["replay"] == replay:
                sides = [ctypes.string_at(int(row[side]), int(row["nbytes"])) for side in ("source", "shadow")]
                changed |= {int(row["part"])} if sides[0] != sides[1] else set()
        assert all(int(parts[at]["shadow"]) % 16 == int(parts[at]["start"]) % 16 for at in changed)
        return [int(marks[at]["id"]) for at in sorted(changed)]


class _Event:
    def __init__(self, device: Played) -> None:
        self._device = device

    def record(self, stream: object) -> None:
        assert stream is self._device.arming

    @property
    def done(self) -> bool:
        return self._device.behind


class _Launcher:
    def __init__(self, context: object, function: Any, types: object) -> None:
        self._function, self._values = function, ()

    def set(self, values: Any) -> None:
        self._values = values

    def launch(self, blocks: int, threads: int, stream: int) -> None:
        self._function(*self._values)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.setattr(graph_shadows, "Launcher", _Launcher)
    return Played()


class Buffers:
    """Ranges of some sizes, at places without an alignment, each with its serial as its key."""

    def __init__(self, *sizes: int) -> None:
        self._memory = Memory(sum(sizes) + 100 * len(sizes))
        self.parts, at = list[NodePart](), self._memory.data.ptr + 5
        for serial, size in enumerate(sizes, start=1):
            self.parts.append(NodePart(serial, ByteRange(at, at + size), serial, undecided=serial % 2 == 0))
            at += size + 51

    def change(self, serial: int, offset: int) -> None:
        where = self.parts[serial - 1].where.start + offset
        ctypes.memset(where, ctypes.string_at(where, 1)[0] ^ 255, 1)


SIZES = 1, 15, 16, 4096, 64 << 10, 100_000


@pytest.mark.parametrize("serial", range(1, len(SIZES) + 1))
def test_each_byte_of_each_range_is_copied_and_compared(played: Played, serial: int) -> None:
    buffers = Buffers(*SIZES)
    assert played.shadows.show(1, buffers.parts)
    for replay, offset in enumerate((0, SIZES[serial - 1] // 2, SIZES[serial - 1] - 1), start=1):
        played.head(1, replay)
        assert played.tail(1, replay) == []
        buffers.change(serial, offset)
        (number,) = played.tail(1, replay)
        found, listed = played.shadows.part_of(number)
        assert found == buffers.parts[serial - 1]
        assert listed is not None
        played.shadows.empty(listed)
        assert played.tail(1, replay) == [], "one that was reported is compared no more"
        assert played.shadows.show(1, buffers.parts), "until it is listed again"
    rows, _, marks = played.table(1)
    assert all(0 < row["nbytes"] <= PIECE for row in rows)
    assert [int(mark["flags"]) for mark in marks] == [part.undecided for part in buffers.parts]


def test_a_table_stays_while_its_ranges_do(played: Played) -> None:
    buffers = Buffers(100, 200)
    assert played.shadows.show(1, buffers.parts)
    before = played.published[1001]
    assert not played.shadows.show(1, list(buffers.parts))
    assert played.published[1001] == before
    assert len(played.rooms) == 1


def test_a_replay_during_which_another_table_was_published_says_nothing(played: Played) -> None:
    buffers = Buffers(100, 200)
    played.shadows.show(1, buffers.parts[:1])
    played.head(1, 7)
    played.shadows.show(1, buffers.parts)
    buffers.change(1, 3)
    assert played.tail(1, 7) == []
    played.head(1, 8)
    buffers.change(2, 3)
    assert len(played.tail(1, 8)) == 1


def test_a_buffer_that_ends_is_read_in_no_graph(played: Played) -> None:
    buffers = Buffers(5000, 200)
    for graph in (1, 2):
        played.shadows.show(graph, buffers.parts)
        played.head(graph, 1)
    buffers.change(1, 4999)
    (number,) = played.tail(1, 1)
    assert played.shadows.withdraw(1)
    assert not played.shadows.withdraw(1)
    assert not played.shadows.withdraw(77)
    for graph in (1, 2):
        assert played.tail(graph, 1) == []
        assert [int(row["source"]) for row in played.table(graph)[0]][:2] == [0, 0]
    assert played.shadows.part_of(number) == (buffers.parts[0], None), "what was reported before counts"
    buffers.change(2, 0)
    assert len(played.tail(2, 1)) == 1


def test_graphs_without_ranges_or_without_check_nodes_have_no_table(played: Played) -> None:
    assert not played.shadows.show(1, ())
    assert not played.shadows.show(10, Buffers(100).parts)
    assert (played.published, played.rooms) == ({}, [])


def test_no_range_is_listed_after_all(played: Played) -> None:
    buffers = Buffers(100, 200)
    for graph in (1, 2):
        played.shadows.show(graph, buffers.parts)
        played.head(graph, 1)
    (number,) = {int(played.table(1)[2][0]["id"])}
    played.shadows.clear()
    buffers.change(1, 0)
    assert [played.tail(graph, 1) for graph in (1, 2)] == [[], []]
    assert played.shadows.part_of(number) == (None, None)


def test_memory_of_a_table_is_used_again_after_a_rest(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = Buffers(100, 200)
    played.shadows.show(1, buffers.parts)
    played.shadows.show(1, buffers.parts[:1])
    played.shadows.show(1, buffers.parts)
    assert len(played.rooms) == 3, "replays in flight may use it"
    monkeypatch.setattr(graph_shadows, "_REST", -1.0)
    first = played.published[1001]
    for _ in range(10):
        played.shadows.show(1, buffers.parts[:1])
        played.shadows.show(1, buffers.parts)
    assert len(played.rooms) <= 4
    assert played.published[1001][1:] == first[1:]
    played.head(1, 3)
    buffers.change(2, 199)
    assert len(played.tail(1, 3)) == 1


def test_memory_of_a_table_rests_until_the_device_has_another_one(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long its queue is: checks that are queued read what is published when they run."""
    buffers = Buffers(100, 200)
    monkeypatch.setattr(graph_shadows, "_REST", -1.0)
    played.shadows.show(1, buffers.parts)
    played.behind = False
    for _ in range(3):
        played.shadows.show(1, buffers.parts[:1])
        played.shadows.show(1, buffers.parts)
    assert len(played.rooms) == 7
    assert played.events == 6
    played.behind = True
    for _ in range(3):
        played.shadows.show(1, buffers.parts[:1])
        played.shadows.show(1, buffers.parts)
    assert len(played.rooms) == 7
    assert played.events == 1, "that of the latest"


def test_a_graph_that_ends_has_its_table_withdrawn(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last replays may be queued, while its watch is known no more."""
    buffers = Buffers(100)
    played.shadows.show(1, buffers.parts)
    monkeypatch.setattr(played.shadows, "_watch_of", lambda graph: None)
    assert played.shadows.show(1, ())
    assert played.published[1001] == (0, 0, 0)
    assert not played.shadows.show(1, ())


def test_where_a_table_cannot_be_published_the_one_before_stays(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers = Buffers(100, 200)
    played.shadows.show(1, buffers.parts[:1])
    before = played.published[1001]

    def refuse(*_: object) -> None:
        raise RuntimeError("refused")

    with monkeypatch.context() as patch:
        patch.setattr(played.shadows._set, "launch", refuse)
        with pytest.raises(RuntimeError, match="refused"):
            played.shadows.show(1, buffers.parts)
    assert played.published[1001] == before
    played.head(1, 1)
    buffers.change(1, 0)
    (number,) = played.tail(1, 1)
    assert played.shadows.part_of(number)[0] == buffers.parts[0]
    assert played.shadows.show(1, buffers.parts), "it is tried again"
    assert len(played.rooms) == 2, "in the memory of the first attempt"


def test_all_tables_together_have_a_bound(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = Buffers(100, 200)
    monkeypatch.setattr(graph_shadows, "MOST", 2 * 4096)
    played.shadows.show(1, buffers.parts)
    played.shadows.show(2, buffers.parts)
    before = dict(played.published)
    for graph in (1, 3):
        with pytest.raises(MemoryError):
            played.shadows.show(graph, buffers.parts[:1])
    assert played.published == before


def test_what_a_record_names_is_known_of_a_lost_device_too() -> None:
    """That is when the last records are read: its rows are not emptied then."""
    part = NodePart("key", ByteRange(0, 8), 1)
    rows: Any = object()
    engine = CupyEngine.__new__(CupyEngine)
    emptied: list[object] = []
    shadows: Any = SimpleNamespace(part_of=lambda id: (part, rows), empty=emptied.append)
    engine.shadows = shadows
    for lost, expected in ((None, [rows]), ("illegal access", [rows])):
        engine.lost = lost
        assert engine._part_of(5) == "key"
        assert emptied == expected

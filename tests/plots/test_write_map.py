"""Write maps against the graphs that they are of, live and from dumps, small and large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from map_makers import BASE, boxes, buffer, damage, gids, require_readable, texts
from matplotlib.colors import to_hex
from support.node_makers import Model, cuda_nodes

import shadowgraph as sg
from shadowgraph.commands.main import main
from shadowgraph.common.errors import NothingToDrawError, UnknownBufferError, UsageError
from shadowgraph.demos.kernels import fill
from shadowgraph.dumps.reader import read_dump
from shadowgraph.render.plots.columns import EAGER, Axis
from shadowgraph.render.plots.pen import VERMILLION
from shadowgraph.render.plots.write_map import write_map
from shadowgraph.views.memory_map import MemoryMap
from shadowgraph.views.write_map import NodeWrite, Sure, WriteMap, WriteMark, WriteNode


class _Worker:
    """A graph whose last node, a kernel, writes `past` elements beyond the table that its second node fills."""

    def __init__(self, debugger: sg.Debugger, past: int) -> None:
        with debugger.guard():
            self.table, self.other = torch.zeros(8, dtype=torch.int32), torch.zeros(16)
        debugger.name("worker", self)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.doubled = self.table * 2
            fill[(1,)](self.table, 0, 4, 1, BLOCK=256)
            self.other[4:8].add_(1)
            fill[(1,)](self.table, 0, 8 + past, 1, BLOCK=256)


def _run(path: Path, past: int, eager: int = 0) -> tuple[WriteMap, WriteMap, dict[str, int]]:
    """The live map, the one of the dump, and addresses."""
    with sg.debug() as debugger:
        worker = _Worker(debugger, past)
        if eager:
            fill[(1,)](worker.table, 0, 8 + eager, 1, BLOCK=256)
        worker.graph.replay()
        assert len(debugger.findings) == bool(past or eager)
        live = WriteMap.of(debugger)
        with read_dump(debugger.dump(path)) as dump:
            return live, WriteMap.of(dump), {n: getattr(worker, n).data_ptr() for n in ("table", "other", "doubled")}


def _of(map: WriteMap, name: str) -> tuple[int, list[tuple[int, int, int, Sure]]]:
    index = next(i for i, each in enumerate(map.memory.buffers) if name in (each.name, *each.names))
    start = map.memory.buffers[index].start
    return index, [(w.node, w.start - start, w.stop - start, w.sure) for w in map.writes if w.buffer == index]


def test_what_each_node_writes(tmp_path: Path) -> None:
    live, dumped, address = _run(tmp_path / "run.dump", past=3)
    assert live == dumped
    assert [node.name for node in live.nodes] == ["aten.mul.Tensor", "fill", "aten.add_.Tensor", "fill"]
    assert sorted(_of(live, "worker.table")[1]) == [(1, 0, 16, Sure.SEEN), (3, 0, 44, Sure.SEEN)]
    assert _of(live, "worker.other")[1] == [(2, 16, 32, Sure.SIGNATURE)]
    index, _ = _of(live, "worker.table")
    assert live.memory.buffers[index].start == address["table"]
    (mark,) = live.marks
    assert (mark.nodes, mark.sure, live.memory.damages[mark.damage].buffer) == ((3,), True, index)


def test_drawn_where_it_is(tmp_path: Path) -> None:
    map, _, _ = _run(tmp_path / "run.dump", past=3)
    figure = write_map(map)
    axis = Axis.of(4)
    index, writes = _of(map, "worker.table")
    drawn = boxes(figure, f"write:seen:{index}")
    assert len(drawn) == len(writes) == 2
    assert [(left, right) for left, _, right, _ in drawn] == [pytest.approx(axis.cell(1)), pytest.approx(axis.cell(3))]
    [(_, top, _, bottom)] = boxes(figure, f"buffer:{index}")
    assert drawn[0][1] == pytest.approx(top, abs=0.002)
    assert drawn[0][3] == pytest.approx((top + bottom) / 2, abs=0.002), "half of the table"
    assert drawn[1][3] == pytest.approx(bottom, abs=0.002), "12 bytes of a guard of thousands are seen by their mark"
    [mark] = boxes(figure, "mark:1")
    assert (mark[0], mark[2]) == pytest.approx(axis.cell(3))
    assert mark[3] > bottom
    [line] = figure.findobj(lambda one: one.get_gid() == "culprit:1")
    xs = {round(float(x), 6) for segment in line.get_segments() for x, _ in segment}
    assert xs == {round(axis.middle(3), 6)}
    assert "#1 fill (node 3)" in texts(figure)
    assert len(gids(figure, "buffer:")) == len(map.memory.buffers)
    require_readable(figure)


def test_what_came_before_the_graph_has_a_column_of_its_own(tmp_path: Path) -> None:
    map, dumped, _ = _run(tmp_path / "run.dump", past=0, eager=2)
    assert map == dumped
    assert [mark.nodes for mark in map.marks] == [()]
    figure = write_map(map)
    axis = Axis.of(4, eager=True)
    [mark] = boxes(figure, "mark:1")
    assert (mark[0], mark[2]) == pytest.approx(axis.cell(EAGER))
    assert mark[2] < axis.left
    assert "before" in texts(figure)


def test_the_fixed_twin_has_no_mark(tmp_path: Path) -> None:
    map, _, _ = _run(tmp_path / "run.dump", past=0)
    figure = write_map(map)
    assert map.writes
    assert not map.marks
    assert not gids(figure, "mark:")
    assert not gids(figure, "culprit:")
    colors = {to_hex(color) for one in figure.axes[0].collections for color in one.get_facecolor()}
    assert VERMILLION.lower() not in colors
    assert "no finding on graph#" in next(text for text in texts(figure) if "nodes may write" in text)


def test_without_a_finding_the_graph_is_one_that_was_replayed() -> None:
    with sg.debug() as debugger:
        x = torch.zeros(8)
        idle, busy = sg.HostGraph(), sg.HostGraph()
        for graph in (idle, busy):
            with sg.host_graph(graph):
                x.add_(1)
        assert WriteMap.of(debugger).graph == idle.model.name, "none was replayed"
        busy.replay()
        assert WriteMap.of(debugger).graph == busy.model.name
        assert WriteMap.of(debugger, idle.model.name).graph == idle.model.name


def test_a_probed_replay_says_what_changed(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        worker = _Worker(debugger, past=0)
        location = debugger.locate(worker.graph)
        worker.graph.replay()
        debugger.check()
        assert location.write_sets is not None
        live = WriteMap.of(debugger)
        with read_dump(debugger.dump(tmp_path / "run.dump")) as dump:
            assert WriteMap.of(dump) == live
    assert live.replay == 1
    assert (2, 16, 32, Sure.SEEN) in _of(live, "worker.other")[1] or (2, 18, 32, Sure.SEEN) in _of(
        live, "worker.other"
    )[1]


def test_nodes_as_on_a_device() -> None:
    with sg.debug() as debugger:
        model = Model(debugger)
        nodes = cuda_nodes(model)
        debugger.graphs[0].build_device_later(lambda: nodes)
        map = WriteMap.of(debugger)
        del model
    assert [node.place for node in map.nodes] == ["0", "1", "2", "3", "4", "4.0", "4.1", "5", "6", "7"]
    assert _of(map, "model.indptr")[1][0] == (0, 0, 36, Sure.SEEN), "a set's range is exact"
    assert (3, 0, 16, Sure.SEEN) in _of(map, "model.weights")[1], "and a copy's"
    assert (6, 4096, 64 * 64 * 4, Sure.GIVEN) in _of(map, "model.weights")[1], "a kernel of a child graph"
    assert map.untracked == 1
    require_readable(write_map(map))


def test_one_finding_one_buffer_one_graph(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        worker = _Worker(debugger, past=1)
        worker.graph.replay()
        only = WriteMap.of(debugger, buffer="worker.other")
        assert [each.name for each in only.memory.buffers] == ["worker.other"]
        assert not only.marks
        assert len(WriteMap.of(debugger, finding=1).marks) == 1
        with pytest.raises(UsageError, match="no finding #9; there are: #1"):
            WriteMap.of(debugger, finding=9)
        with pytest.raises(UsageError, match="no graph is called 'nope'"):
            WriteMap.of(debugger, "nope")
        with pytest.raises(UnknownBufferError, match=r"the nearest names are: worker\.table"):
            WriteMap.of(debugger, buffer="worker.tabel")


def test_by_default_a_graph_that_was_replayed() -> None:
    with sg.debug() as debugger:
        _, worker = _Worker(debugger, past=0), _Worker(debugger, past=0)
        first, second = (graph.name for graph in debugger.graphs)
        assert WriteMap.of(debugger).graph == first, "none was"
        worker.graph.replay()
        assert WriteMap.of(debugger).graph == second
        assert WriteMap.of(debugger, first).graph == first


def test_a_graph_without_any_write_is_refused(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        made, worker = sg.HostGraph(), _Worker(debugger, past=0)
        with sg.host_graph(made):
            pass
        full, empty = (graph.name for graph in debugger.graphs)
        named = rf"no write is known of {empty}, which was never replayed, with 0 nodes"
        with pytest.raises(NothingToDrawError, match=f"^{named}$"):
            WriteMap.of(debugger, empty)
        worker.graph.replay()
        with pytest.raises(NothingToDrawError, match=f"^{named}; replayed were {full}: name one with --g"):
            WriteMap.of(debugger, empty)
        path = debugger.dump(tmp_path / "run.dump")
    assert main(["map", str(path), "--kind", "writes", "--graph", empty, "-o", str(tmp_path / "map.png")]) == 20
    assert not (tmp_path / "map.png").exists()


def test_without_a_graph() -> None:
    with sg.debug() as debugger, pytest.raises(UsageError, match="no graph was captured"):
        WriteMap.of(debugger)


def large(nodes: int, buffers: int) -> WriteMap:
    """A chain of kernels over many buffers, a damaged one and its culprit far inside."""
    known = tuple(buffer(BASE + 65536 * i, 4096 + i, f"server.layers[{i}].workspace") for i in range(buffers))
    writes = tuple(
        NodeWrite(n, b, known[b].start + 64, known[b].stop, tuple(Sure)[n % 3])
        for n in range(nodes)
        for b in {n % buffers, (7 * n) % buffers}
    )
    hit = damage(1, buffers // 2, known[buffers // 2].stop, known[buffers // 2].stop + 3)
    place = tuple(WriteNode(str(n), f"void kernel_{n % 9}<int>", "model.py:7") for n in range(nodes))
    return WriteMap("graph#1", place, MemoryMap(known, (hit,)), writes, (WriteMark(0, (nodes * 3 // 4,), True),))


@pytest.mark.parametrize(("nodes", "buffers"), [(5, 5), (60, 300), (5000, 5000)])
def test_readable_at_any_size(nodes: int, buffers: int) -> None:
    map = large(nodes, buffers)
    figure = write_map(map)
    require_readable(figure)
    assert len(figure.findobj()) < 1500
    [mark] = boxes(figure, "mark:1")
    assert (mark[0] + mark[2]) / 2 == pytest.approx(Axis.of(nodes).middle(nodes * 3 // 4), abs=0.001)
    assert mark[2] - mark[0] > 0.07, "wide enough to be seen"
    assert gids(figure, f"buffer:{buffers // 2}"), "the damaged one keeps its row"
    hidden = sum(int(stop) - int(first) for _, first, stop in (gid.split(":") for gid in gids(figure, "fold:")))
    assert hidden + len(gids(figure, "buffer:")) == buffers


def test_a_fold_says_which_nodes_write_what_it_hides() -> None:
    map = large(60, 300)
    figure = write_map(map, limit=5)
    axis = Axis.of(60)
    fold = max(gids(figure, "fold:"), key=lambda gid: int(gid.split(":")[2]) - int(gid.split(":")[1]))
    first, stop = map_range = tuple(int(part) for part in fold.split(":")[1:])
    assert stop - first > 50, map_range
    wanted = {axis.cell(w.node) for w in map.writes if first <= w.buffer < stop and w.sure is Sure.SEEN}
    drawn = {(round(left, 3), round(right, 3)) for left, _, right, _ in boxes(figure, f"folded:seen:{first}")}
    assert drawn == {(round(left, 3), round(right, 3)) for left, right in wanted}


def test_a_limit_out_of_range() -> None:
    with pytest.raises(UsageError, match="limit must be from 1 to 200, not 0"):
        write_map(large(5, 5), limit=0)


def test_no_nodes_write_anything() -> None:
    figure: Any = write_map(WriteMap("graph#1", (), MemoryMap(), (), ()))
    assert "0 nodes, of which none writes a buffer that is known" in texts(figure)

"""What nodes wrote and histories of rows in dumps: there and back, within the bound, nothing that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dump_makers import DAMAGED, Capture, Server, overflow, refused, with_manifest

import shadowgraph as sg
from shadowgraph.dumps.reader import read_dump

Manifest = dict[str, Any]


class _Storing(Server):
    """With a kernel in its graph."""

    def __init__(self, debugger: sg.Debugger) -> None:
        super().__init__(debugger)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.output = self.page_table * 2
            overflow(self.page_table, 0)


def _dump(path: Path, **options: Any) -> tuple[Path, int]:
    with sg.debug() as debugger:
        server = _Storing(debugger)
        location = debugger.locate(server.graph)
        server.step()
        server.step()
        debugger.check()
        assert location.write_sets is not None
        return debugger.dump(path, **options), server.page_table.data_ptr()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return _dump(tmp_path_factory.mktemp("history") / "run.dump")[0].read_bytes()


def test_there_and_back(tmp_path: Path) -> None:
    path, table = _dump(tmp_path / "run.dump")
    with read_dump(path) as dump:
        manifest = dump.manifest
        (graph,) = [row for row in manifest.graphs if row.replays]
        (stored,) = manifest.stores
        assert (stored.graph, stored.node, stored.ranges, stored.exact) == (
            graph.serial,
            1,
            ((table, table + 32),),
            True,
        )
        (sets,) = manifest.write_sets
        assert (sets.graph, sets.replay) == (graph.serial, 1)
        assert sets.looked_at
        buffers = {row.serial: row.start for row in manifest.buffers}
        (rows,) = [row for row in manifest.input_rows if buffers[row.buffer] == table and row.graph == graph.serial]
        assert (rows.offset, rows.count, rows.stride, rows.nbytes) == (0, 4, 8, 8)
        assert [at.replay for at in rows.replays] == [1, 2]


def test_a_redacted_dump_has_them_without_values(tmp_path: Path) -> None:
    path, _ = _dump(tmp_path / "run.dump", redact=True)
    with read_dump(path) as dump:
        assert dump.manifest.stores
        assert dump.manifest.input_rows


def test_a_graph_that_is_gone_leaves_none(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        server = _Storing(debugger)
        server.step()
        serial = next(graph.serial for graph in debugger.graphs if graph.replays)
        server.graph.reset()
        with read_dump(debugger.dump(tmp_path / "run.dump")) as dump:
            assert all(row.graph != serial for row in dump.manifest.stores)


def _row(table: str, place: int, value: object) -> Callable[[Manifest], None]:
    def change(manifest: Manifest) -> None:
        manifest[table][0][place] = value

    return change


def _stretch(manifest: Manifest) -> list[Any]:
    stretch: list[Any] = manifest["input_rows"][0][6][0][2][0]
    return stretch


@pytest.mark.parametrize(
    "change",
    [
        _row("stores", 2, [[5, 5]]),
        _row("stores", 2, [[5, 1 << 64]]),
        _row("stores", 1, -1),
        _row("write_sets", 2, [[0, 1, 9, 8, 1]]),
        _row("write_sets", 2, [[0, 1, -(1 << 64), 8, 1]]),
        _row("write_sets", 2, [[-1, 1, 0, 8, 1]]),
        _row("write_sets", 2, [[0, 1, 0, 8, -1]]),
        _row("input_rows", 3, 0),
        _row("input_rows", 5, 1 << 40),
        lambda manifest: _stretch(manifest).__setitem__(1, 1 << 20),
        lambda manifest: _stretch(manifest).__setitem__(0, 99),
        lambda manifest: _stretch(manifest).__setitem__(2, "rotten"),
        lambda manifest: manifest["input_rows"][0][6][0][2].append(_stretch(manifest)),
    ],
)
def test_made_up_histories(whole: bytes, change: Callable[[Manifest], None], tmp_path: Path, capsys: Capture) -> None:
    refused(tmp_path / "run.dump", with_manifest(whole, change), capsys, DAMAGED)


def test_a_maker_of_hostile_histories_makes_good_ones_too(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.dump"
    path.write_bytes(with_manifest(whole, lambda manifest: None))
    with read_dump(path) as dump:
        assert dump.manifest.stores
        assert dump.manifest.write_sets
        assert dump.manifest.input_rows

"""Stale-row maps against the steps of programs, live and from dumps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from map_makers import boxes, gids, require_readable, texts

import shadowgraph as sg
from shadowgraph.common.errors import UnknownBufferError, UsageError
from shadowgraph.demos import a4_padding
from shadowgraph.demos.device import HostDevice
from shadowgraph.dumps.reader import read_dump
from shadowgraph.model.row_history import RowsAtReplay, RowState, RowStretch
from shadowgraph.render.plots.columns import Axis
from shadowgraph.render.plots.row_map import row_map
from shadowgraph.views.row_map import RowMap, RowMark, RowPanel

W, P, K, U = RowState.REFRESHED, RowState.PADDED, RowState.KEPT, RowState.UNKNOWN


def _padding(path: Path, fixed: bool, steps: int = 0) -> tuple[RowMap, RowMap]:
    """The live map of A4 (and of more steps of it), and that of its dump."""
    device = HostDevice()
    with sg.debug(backend="host") as debugger:
        runner = a4_padding.program(device, debugger, fixed, 0)
        for step in range(steps):
            with debugger.prepare(runner.graph):
                runner.prepare((1, 2, 3, 4) if step % 2 else (5, 6))
            runner.graph.replay()
        assert bool(debugger.findings) is not fixed
        live = RowMap.of(debugger)
        with read_dump(debugger.dump(path)) as dump:
            dumped = RowMap.of(dump)
        del runner
    return live, dumped


def _panel(map: RowMap, name: str) -> RowPanel:
    [found] = [panel for panel in map.panels if panel.buffer.endswith(name)]
    return found


def test_rows_replay_by_replay(tmp_path: Path) -> None:
    live, dumped = _padding(tmp_path / "run.dump", fixed=False)
    assert live == dumped
    stale, padded = _panel(live, "req_pool_indices"), _panel(live, "seq_lens")
    assert [[stale.state(replay, row) for row in range(4)] for replay in (1, 2)] == [[W] * 4, [W, K, K, K]]
    assert [[padded.state(replay, row) for row in range(4)] for replay in (1, 2)] == [[W] * 4, [W, P, P, P]]
    assert stale.replays[1].rows[1].replay == 1, "the kept rows were written for the first replay"
    (mark,) = stale.marks
    assert (mark.finding, mark.replay, mark.rows, mark.since) == (1, 2, ((1, 3),), "replay 1")
    assert set(mark.padded) == {"runner.out_cache_loc", "runner.seq_lens"}
    assert not padded.marks


def test_the_fixed_twin_has_no_mark(tmp_path: Path) -> None:
    live, dumped = _padding(tmp_path / "run.dump", fixed=True)
    assert live == dumped
    assert [_panel(live, "req_pool_indices").state(2, row) for row in range(4)] == [W, P, P, P]
    figure = row_map(live)
    assert not gids(figure, "stale:")
    assert not gids(figure, "kept:")
    assert len(gids(figure, "padded:")) == 3


def test_drawn_where_it_is(tmp_path: Path) -> None:
    map, _ = _padding(tmp_path / "run.dump", fixed=False)
    figure = row_map(map)
    require_readable(figure)
    index = map.panels.index(_panel(map, "req_pool_indices"))
    axis = Axis.of(2, left=4.2, right=10.35)
    [stale], [kept] = boxes(figure, "stale:1"), boxes(figure, f"kept:{index}")
    assert stale == pytest.approx(kept)
    assert (stale[0], stale[2]) == pytest.approx(axis.cell(1))
    first, second = sorted(boxes(figure, f"refreshed:{index}"))
    assert (first[0], first[2]) == pytest.approx(axis.cell(0))
    height = first[3] - first[1]
    assert second[3] - second[1] == pytest.approx(height / 4), "one row of four"
    assert stale[3] - stale[1] == pytest.approx(height * 3 / 4)
    assert stale[1] == pytest.approx(second[3])
    drawn = sum(len(boxes(figure, gid)) for gid in gids(figure, "refreshed:") + gids(figure, "padded:"))
    assert drawn == sum(s.state in (W, P) for p in map.panels for at in p.replays for s in at.rows)
    assert "#1 rows 1 to 3, replay 2" in texts(figure)


def test_the_history_is_bounded_and_keeps_what_led_to_the_first_finding(tmp_path: Path) -> None:
    live, dumped = _padding(tmp_path / "run.dump", fixed=False, steps=70)
    assert live == dumped
    panel = _panel(live, "req_pool_indices")
    numbers = [at.replay for at in panel.replays]
    assert numbers == [1, 2, *range(41, 73)]
    assert panel.state(2, 1) is K
    figure = row_map(live)
    require_readable(figure)
    assert gids(figure, "stale:1")


def test_what_is_asked_for(tmp_path: Path) -> None:
    with sg.debug(backend="host") as debugger:
        runner = a4_padding.program(HostDevice(), debugger, False, 0)
        assert [p.buffer for p in RowMap.of(debugger, buffer="seq_lens").panels] == ["runner.seq_lens"]
        name = debugger.graphs[0].name
        assert RowMap.of(debugger, name) == RowMap.of(debugger, finding=1)
        with pytest.raises(UsageError, match="no graph is called"):
            RowMap.of(debugger, "graph#none")
        with pytest.raises(UnknownBufferError, match="the nearest names are: "):
            RowMap.of(debugger, buffer="runner.seq_len")
        del runner
    with sg.debug(backend="host") as debugger, pytest.raises(UsageError, match="no history of rows was kept"):
        RowMap.of(debugger)


def large(inputs: int, rows: int, replays: int, marked: bool = True) -> RowMap:
    """Persistent batches of which the last quarter of the rows is kept; one of them is found stale."""

    def at(number: int) -> RowsAtReplay:
        cut = rows - max(1, rows // 4)
        return RowsAtReplay(number, number, (RowStretch(0, cut - 1, W), RowStretch(cut, rows - 1, K, 1, 1)))

    states = tuple(map(at, range(900, 900 + replays)))
    names = [f"server.model.layers[{i}].decode_inputs_of_a_long_name.positions" for i in range(inputs)]
    panels = [RowPanel("graph#1", name, "int64", 0, rows, 8, states) for name in names]
    if marked:
        mark = RowMark(3, "SG103", 901, ((rows - max(1, rows // 4), rows - 1),), "replay 1", ("server.model.seq_lens",))
        panels[inputs // 2] = replace(panels[inputs // 2], marks=(mark,))
    return RowMap(tuple(panels))


@pytest.mark.parametrize(("inputs", "rows", "replays"), [(5, 2, 3), (60, 512, 40), (5000, 16384, 41)])
def test_readable_at_any_size(inputs: int, rows: int, replays: int) -> None:
    figure: Any = row_map(large(inputs, rows, replays))
    require_readable(figure)
    assert len(figure.findobj()) < 3500
    assert gids(figure, "stale:3")
    hidden = sum(int(stop) - int(first) for _, first, stop in (gid.split(":") for gid in gids(figure, "fold:")))
    assert hidden + len(gids(figure, "kept:")) == inputs


def test_nothing_and_too_much() -> None:
    assert "no history of rows of what was asked for" in texts(row_map(RowMap(())))
    with pytest.raises(UsageError, match="limit must be from 1 to 200, not 201"):
        row_map(large(1, 2, 2), limit=201)


def test_inputs_stand_in_the_order_of_their_numbers() -> None:
    with sg.debug(backend="host") as debugger:
        with debugger.guard():
            inputs = [torch.zeros(4, dtype=torch.int64) for _ in range(11)]
        debugger.name("inputs", inputs)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            total = sum(inputs[1:], inputs[0])
        graph.replay()
        names = [panel.buffer for panel in RowMap.of(debugger).panels]
    assert total is not None
    assert names == [f"inputs[{number}]" for number in range(11)]

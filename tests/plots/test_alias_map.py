"""Alias maps against the views of a program, live and from dumps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from map_makers import BASE, boxes, damage, gids, require_readable, spans, texts

import shadowgraph as sg
from shadowgraph.common.errors import UnknownBufferError, UsageError
from shadowgraph.demos.kernels import fill
from shadowgraph.dumps.reader import read_dump
from shadowgraph.render.plots.alias_map import alias_map
from shadowgraph.render.plots.page import BARS
from shadowgraph.views.alias_map import AliasLine, AliasMap, AliasPanel


def _program(debugger: sg.Debugger, past: int) -> Any:
    with debugger.guard():
        table, alone = torch.zeros(4, 6, dtype=torch.int32), torch.zeros(8)
    owner = SimpleNamespace(table=table, left=table[:, :3], mid=table[:, 2:4], row=table[3], again=table, alone=alone)
    debugger.name("w", owner)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        owner.out = table * 2
    fill[(1,)](table, 0, 24 + past, 1, BLOCK=256)
    graph.replay()
    return owner, graph


def _maps(path: Path, past: int) -> tuple[AliasMap, AliasMap]:
    with sg.debug() as debugger:
        kept = _program(debugger, past)
        assert len(debugger.findings) == bool(past)
        live = AliasMap.of(debugger)
        with read_dump(debugger.dump(path)) as dump:
            dumped = AliasMap.of(dump)
        del kept
    return live, dumped


def test_who_shares_which_bytes(tmp_path: Path) -> None:
    live, dumped = _maps(tmp_path / "run.dump", past=2)
    assert live == dumped
    (panel,) = live.panels
    lines = {line.names: line for line in panel.lines}
    assert panel.lines[0].names == ("w.again", "w.table") or set(panel.lines[0].names) == {"w.table", "w.again"}
    assert lines[("w.left",)].pieces == tuple((24 * row, 24 * row + 12) for row in range(4))
    assert lines[("w.mid",)].pieces == tuple((24 * row + 8, 24 * row + 16) for row in range(4))
    assert lines[("w.row",)].pieces == ((72, 96),)
    owners = [
        sum(start <= at < stop for line in panel.lines for _ in line.names for start, stop in line.pieces)
        for at in range(96)
    ]
    assert [depth for start, stop, depth in panel.depth for _ in range(start, stop)] == owners
    assert max(owners) == 5, "column 2 of the last row"
    # Column 2 is in `left` and in `mid`; columns 0 to 3 of the last row are in `row` too.
    assert panel.contested == 3 * 4 + 16
    (found,) = panel.damages
    assert found.first == panel.address + 96


def test_drawn_where_it_is(tmp_path: Path) -> None:
    map, _ = _maps(tmp_path / "run.dump", past=2)
    figure = alias_map(map)
    require_readable(figure)
    (panel,) = map.panels
    byte = (BARS[1] - BARS[0]) / 96
    for place, line in enumerate(panel.lines[1:], 1):
        wanted = [(BARS[0] + start * byte, BARS[0] + stop * byte) for start, stop in line.pieces]
        assert spans(figure, f"owner:0:{place}") == [pytest.approx(each) for each in wanted]
    for depth in (2, 3):
        deep = [(BARS[0] + a * byte, BARS[0] + b * byte) for a, b, owners in panel.depth if owners == depth]
        assert spans(figure, f"depth:{depth}:0") == [pytest.approx(each) for each in deep]
    [(left, _)] = spans(figure, "damage:1")
    assert left >= BARS[1] - 1e-9, "past the end"
    assert {"↳ w.left", "[:, 0:3]", "↳ w.row", "[3]", "#1 SG101"} <= set(texts(figure))


def test_the_fixed_twin_has_no_mark(tmp_path: Path) -> None:
    map, _ = _maps(tmp_path / "run.dump", past=0)
    figure = alias_map(map)
    assert gids(figure, "owner:0:1")
    assert not gids(figure, "damage:")
    assert any("no findings on them" in text for text in texts(figure))


def test_what_is_asked_for() -> None:
    with sg.debug() as debugger:
        kept = _program(debugger, 1)
        assert len(AliasMap.of(debugger, buffer="w.left").panels) == 1
        assert AliasMap.of(debugger, buffer="w.alone").panels == ()
        assert len(AliasMap.of(debugger, finding=1).panels) == 1
        with pytest.raises(UnknownBufferError, match=r"the nearest names are: .*w\.left"):
            AliasMap.of(debugger, buffer="w.lefd")
        with pytest.raises(UsageError, match="no finding #4"):
            AliasMap.of(debugger, finding=4)
        del kept


def large(groups: int, owners: int) -> AliasMap:
    """Many groups; the one in the middle has a finding, the others views of all sorts."""

    def panel(index: int) -> AliasPanel:
        start = BASE + 8192 * index
        rest = [
            AliasLine(
                (f"backend.layers[{index}].views_of_a_long_name[{n}].part",),
                "int32[9]",
                f"[{n}:{n + 9}]",
                ((4 * n, 4 * n + 36),),
            )
            for n in range(owners - 1)
        ]
        first = AliasLine((f"runner.layers[{index}].table",), "int32[1024]", "", ((0, 4096),))
        hit = (damage(1, 0, start + 4096, start + 4103),) if index == groups // 2 else ()
        return AliasPanel(start, 4096, ("runner.table",), (first, *rest), ((0, 4096, owners),), hit)

    return AliasMap(tuple(map(panel, range(groups))))


@pytest.mark.parametrize(("groups", "owners"), [(5, 2), (40, 30), (5000, 3)])
def test_readable_at_any_size(groups: int, owners: int) -> None:
    figure = alias_map(large(groups, owners))
    require_readable(figure)
    assert len(figure.findobj()) < 4000
    assert len(boxes(figure, "damage:1")) == 1
    hidden = sum(int(stop) - int(first) for _, first, stop in (gid.split(":") for gid in gids(figure, "fold:")))
    drawn = {gid.split(":")[1] for gid in gids(figure, "owner:")}
    assert hidden + len(drawn) == groups
    assert str(groups // 2) in drawn


def test_nothing_and_too_much() -> None:
    assert "no two owners share bytes, as far as they have names" in texts(alias_map(AliasMap()))
    with pytest.raises(UsageError, match="limit must be from 1 to 200, not 0"):
        alias_map(large(2, 2), limit=0)

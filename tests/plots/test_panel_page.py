"""The page that all pictures share, and the function that saves them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from map_makers import many, texts
from test_alias_map import large as aliases
from test_row_map import large as rows
from test_write_map import large as writes

from shadowgraph.common.errors import UsageError
from shadowgraph.render.plots.alias_map import alias_map, save_alias_map
from shadowgraph.render.plots.byte_map import byte_map, save_byte_map
from shadowgraph.render.plots.memory_map import memory_map, save_memory_map
from shadowgraph.render.plots.panel_page import Entry, Panel, PanelPage, fitting, with_folds
from shadowgraph.render.plots.row_map import row_map, save_row_map
from shadowgraph.render.plots.saving import save_map
from shadowgraph.render.plots.write_map import save_write_map, write_map
from shadowgraph.views.byte_map import ByteMap
from shadowgraph.views.byte_rows import ByteCell, ByteRow, Fate

Saved = tuple[Callable[..., Any], Callable[..., Path], Any]
BYTES = ByteMap(
    "w.table",
    "int32[64]",
    4096,
    256,
    "int32",
    tuple(ByteRow(at, tuple(ByteCell(at + n, 7, 3, fate=Fate.CHANGED) for n in range(16))) for at in range(0, 256, 16)),
    (),
)
KINDS = {
    "memory": (memory_map, save_memory_map, many(9)),
    "aliases": (alias_map, save_alias_map, aliases(9, 2)),
    "writes": (write_map, save_write_map, writes(9, 9)),
    "rows": (row_map, save_row_map, rows(9, 2, 3)),
    "bytes": (byte_map, save_byte_map, BYTES),
}


@pytest.fixture(params=KINDS)
def saved(request: pytest.FixtureRequest) -> Saved:
    made: Saved = KINDS[request.param]
    return made


def without_ids(path: Path) -> str:
    """An SVG file, of which matplotlib chooses some ids at random."""
    return re.sub(r"#?\b[pmh][0-9a-f]{10}", "", path.read_text("utf-8"))


def test_a_kind_is_saved_as_it_is_drawn(saved: Saved, tmp_path: Path) -> None:
    draw, save, map = saved
    one, other = tmp_path / "one.svg", tmp_path / "other.svg"
    assert save(map, one, limit=4, title="Step 3") == one
    assert save_map(draw, map, other, limit=4, title="Step 3") == other
    assert without_ids(one) == without_ids(other)
    figure = draw(map, limit=4, title="Step 3")
    assert texts(figure)[0] == "Step 3"
    assert any(text.startswith("…") for text in texts(figure)), "the rest is folded"


def test_what_cannot_be_saved_is_refused(saved: Saved, tmp_path: Path) -> None:
    _, save, map = saved
    with pytest.raises(UsageError, match=r"must end in \.png, \.svg or \.pdf"):
        save(map, tmp_path / "map.gif")
    for limit in (0, 201):
        with pytest.raises(UsageError, match=f"limit must be from 1 to 200, not {limit}"):
            save(map, tmp_path / "map.png", limit=limit)
    assert not list(tmp_path.iterdir())


def test_panels_follow_each_other_below_the_head() -> None:
    tops: list[float] = []
    panels = [Panel(height, lambda pen, top: tops.append(top)) for height in (0.5, 0.25, 1.0)]
    page = PanelPage("Title", "counts", [Entry("white", "a style")], panels, above=0.2, below=0.4)
    assert tops == [], "only the head is drawn"
    figure = page.draw_panels()
    assert texts(figure) == ["Title", "counts", "a style"]
    assert tops == pytest.approx([page.top, page.top + 0.5, page.top + 0.75])
    assert page.bottom == pytest.approx(page.top + 1.75)
    assert figure.get_size_inches()[1] == pytest.approx(page.bottom + 0.4 + 0.3), "and a margin"


def test_panels_that_are_not_shown_are_folded_in_place() -> None:
    def panel(place: int) -> Panel:
        return Panel(place, lambda pen, top: None)

    def fold(first: int, stop: int) -> Panel:
        return Panel(100 * first + stop, lambda pen, top: None)

    assert [made.height for made in with_folds(9, [7, 2, 3], panel, fold)] == [2, 2, 3, 407, 7, 809]
    assert [made.height for made in with_folds(2, [0, 1], panel, fold)] == [0, 1]


def test_what_fits_on_a_page() -> None:
    assert fitting([4, 1, 3], lambda place: 5, 10) == [1, 4]
    assert fitting([4, 1, 3], lambda place: 50, 10) == [4], "at least one"

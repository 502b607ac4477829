"""What is drawn against the data, in inches and in pixels; files and errors."""

from __future__ import annotations

import itertools
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from map_makers import BASE, buffer, damage, gids, many, past_end, spans, texts
from matplotlib.colors import to_rgb

from shadowgraph.common.errors import MissingFileError, MissingPackageError, UsageError
from shadowgraph.render.plots.memory_map import memory_map, save_memory_map
from shadowgraph.render.plots.page import BARS, COLUMNS, LEAST_DAMAGE
from shadowgraph.render.plots.pen import VERMILLION
from shadowgraph.views.memory_map import MapAlias, MemoryMap

_LEFT, _RIGHT = COLUMNS.payload
_LENGTH = _RIGHT - _LEFT


def _pixels(figure: Any) -> Any:
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)


def _vermillion(figure: Any, gid: str) -> int:
    """Pixels of the damage colour inside an artist's box."""
    [artist] = figure.findobj(lambda one: one.get_gid() == gid)
    pixels = _pixels(figure)
    [box] = [path.get_extents(figure.axes[0].transData) for path in artist.get_paths()]
    height = pixels.shape[0]
    part = pixels[int(height - box.y1) : int(height - box.y0) + 1, int(box.x0) : int(box.x1) + 1]
    return int((abs(part - np.array(to_rgb(VERMILLION)) * 255).max(axis=2) < 12).sum())


def _awkward() -> MemoryMap:
    """Many findings on one buffer, long names, owners, far damage, bytes lost in rows."""
    parts = tuple(MapAlias(f"w[{i}].kv_indices", f"[{i}:{i + 9}]", BASE + i, BASE + i + 9) for i in range(9))
    long_name = 'runner.model["layer$x$"].backends[12].metadata["кв"]["键"].kv_indices_of_a_long_name\nsecond line'
    first = buffer(name=long_name, aliases=parts)
    second = buffer(BASE + 65536, 1 << 30, role="pool", graph="graph#12")
    third = buffer(BASE + (1 << 32), 64, alive=False, head_guard=0, tail_guard=0)
    culprit = "_ZN4some7mangled_kernel_with_templates<float, 128, 64, true> (node 1234)"
    damages = [damage(n, 0, first.stop + 30 * n, first.stop + 30 * n + 9, culprit=culprit) for n in range(1, 6)]
    damages += [damage(n, 0, first.start - 8 * n, first.start - 8 * n + 3) for n in range(6, 9)]
    apart = ((second.start, second.start + 3), (second.stop, second.stop + 99))
    damages += [
        damage(9, 1, second.start, second.stop + 99, ranges=apart, count=104),
        damage(10, 1, second.start + 512, second.start + 1023, count=8),
        damage(11, 2, third.start, third.stop - 1, located=False),
        damage(12, 2, third.stop + 70_000, third.stop + 70_003, truncated=True),
    ]
    return MemoryMap((first, second, third), tuple(damages))


def test_a_rows_bars_are_in_proportion() -> None:
    own = buffer()
    found = damage(7, 0, own.start + 1000, own.start + 1999)
    figure = memory_map(MemoryMap((own,), (found,)))
    assert spans(figure, "buffer:0") == [pytest.approx(COLUMNS.payload)]
    assert spans(figure, "head:0") == [pytest.approx(COLUMNS.head)]
    assert spans(figure, "tail:0") == [pytest.approx(COLUMNS.tail)]
    assert spans(figure, "damage:7") == [pytest.approx((_LEFT + _LENGTH / 4, _LEFT + _LENGTH / 2))]


def test_damage_in_a_guard_is_in_proportion_to_the_guard() -> None:
    own = buffer()
    after, before = damage(1, 0, own.stop + 1024, own.stop + 2047), damage(2, 0, own.start - 256, own.start - 1)
    figure = memory_map(MemoryMap((own,), (after, before)))
    left, right = COLUMNS.tail
    quarter = (right - left) / 4
    assert spans(figure, "damage:1") == [pytest.approx((left + quarter, left + 2 * quarter))]
    assert spans(figure, "damage:2") == [pytest.approx((sum(COLUMNS.head) / 2, COLUMNS.head[1]))]


def test_damage_across_an_edge_is_drawn_on_both_sides() -> None:
    own = buffer()
    figure = memory_map(MemoryMap((own,), (damage(1, 0, own.stop - 1000, own.stop + 1023),)))
    inside, outside = spans(figure, "damage:1")
    assert inside == pytest.approx((_RIGHT - _LENGTH / 4, _RIGHT))
    assert outside == pytest.approx((_RIGHT, _RIGHT + (COLUMNS.tail[1] - _RIGHT) / 4))


def test_a_guard_that_stands_behind_others_bytes_is_drawn_behind_them() -> None:
    own = buffer(gap=512, tail_guard=1536)
    [(left, right)] = spans(memory_map(MemoryMap((own,), ())), "tail:0")
    tail = COLUMNS.tail[1] - _RIGHT
    assert (left, right) == pytest.approx((_RIGHT + tail / 4, _RIGHT + tail))


@pytest.mark.parametrize("offset", [-4, 0, 1 << 29, (1 << 30) - 4, 1 << 30])
def test_four_bytes_of_a_gibibyte_are_seen_on_the_right_side(offset: int) -> None:
    own = buffer(nbytes=1 << 30, tail_guard=1 << 20)
    figure = memory_map(MemoryMap((own,), (damage(3, 0, BASE + offset, BASE + offset + 3),)))
    [(left, right)] = spans(figure, "damage:3")
    assert right - left >= LEAST_DAMAGE - 1e-9
    column = COLUMNS.head if offset < 0 else COLUMNS.tail if offset == 1 << 30 else COLUMNS.payload
    assert column[0] - 1e-9 <= left < right <= column[1] + 1e-9
    assert _vermillion(figure, "damage:3") > 20
    assert _vermillion(figure, "zoom:3") > 200


def test_the_zoom_is_in_proportion() -> None:
    own = buffer()
    figure = memory_map(MemoryMap((own,), (past_end(1, 0, own, 64),)))
    # 16 bytes are shown before the end and after the damage, so 96 in all.
    byte = (BARS[1] - BARS[0]) / 96
    assert spans(figure, "zoom:1") == [pytest.approx((BARS[0] + 16 * byte, BARS[1] - 16 * byte))]
    assert {"end 4,000", "+4,063", "+64 B past the end"} <= set(texts(figure))


def test_bytes_of_which_only_some_broke_are_not_drawn_solid() -> None:
    own = buffer()
    some = damage(1, 0, own.start + 1000, own.start + 2999, count=8)
    figure = memory_map(MemoryMap((own,), (some,)))
    assert spans(figure, "damage:1") == [pytest.approx((_LEFT + _LENGTH / 4, _LEFT + _LENGTH * 3 / 4))]
    [artist] = figure.findobj(lambda one: one.get_gid() == "damage:1")
    assert artist.get_hatch()
    assert tuple(artist.get_facecolor()[0]) == (1, 1, 1, 1)
    assert "some of these bytes broken" in texts(figure)


def test_a_finding_without_bytes_outlines_its_buffer() -> None:
    own = buffer()
    figure = memory_map(MemoryMap((own,), (damage(1, 0, own.start, own.stop - 1, located=False),)))
    assert spans(figure, "damage:1") == [pytest.approx(COLUMNS.payload)]
    assert not gids(figure, "zoom:")


def test_owners_are_drawn_where_their_slices_lie() -> None:
    half, end = MapAlias("w.half", "[0:500]", BASE, BASE + 2000), MapAlias("w.end", "[750:]", BASE + 3000, BASE + 4000)
    figure = memory_map(MemoryMap((buffer(aliases=(half, end)),)))
    assert spans(figure, "alias:0:0") == [pytest.approx((_LEFT, _LEFT + _LENGTH / 2))]
    assert spans(figure, "alias:0:1") == [pytest.approx((_LEFT + _LENGTH * 3 / 4, _RIGHT))]
    assert {"↳ w.half", "[0:500]", "↳ w.end", "[750:]"} <= set(texts(figure))


def test_the_strip_marks_damage_inside_its_buffers_bar() -> None:
    places, mib = (BASE, BASE + (2 << 20), BASE + (1 << 44)), 1 << 20
    buffers = tuple(buffer(place, mib, role="pool" if place == places[1] else "static") for place in places)
    hit = damage(1, 1, buffers[1].start + 100_000, buffers[1].start + 100_003)
    figure = memory_map(MemoryMap(buffers, (hit,)))
    [(left, right)] = spans(figure, "overview:pool")
    [(mark, _)] = spans(figure, "overview:damage")
    assert mark == pytest.approx(left + (right - left) * 100_002 / (1 << 20), abs=0.001)
    assert len(spans(figure, "overview:ground")) == 3


@pytest.mark.slow
def test_fold_lines_say_what_they_hide() -> None:
    memory = many(900, named=1)
    figure = memory_map(memory, limit=14)
    folds = gids(figure, "fold:")
    assert folds
    for gid in folds:
        first, stop = map(int, gid.split(":")[1:])
        [text] = figure.findobj(lambda one, gid=gid: one.get_gid() == gid)
        assert text.get_text().startswith(f"… {stop - first:,} more buffers, ")
    hidden = sum(int(gid.split(":")[2]) - int(gid.split(":")[1]) for gid in folds)
    assert hidden + len(gids(figure, "buffer:")) == 900


def test_five_thousand_buffers_take_few_artists() -> None:
    few, lots = (len(memory_map(many(count)).findobj()) for count in (500, 5000))
    assert lots < 900
    assert lots < 2 * few
    assert len(gids(memory_map(many(5000)), "damage:")) == 3


_PAGES = {"awkward": _awkward(), "5": many(5), "40 damaged": many(300, 40), "300 damaged": many(900, 300)}


@pytest.mark.parametrize("memory", _PAGES.values(), ids=_PAGES.keys())
def test_no_text_runs_over_another_or_off_the_page(memory: MemoryMap) -> None:
    figure = memory_map(memory, limit=20)
    renderer = figure.canvas.get_renderer()
    width, height = figure.get_size_inches() * figure.dpi
    boxes = [(text.get_window_extent(renderer), text.get_text()) for text in figure.axes[0].texts]
    for box, text in boxes:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= width, text
        assert box.y1 <= height, text
    boxes.sort(key=lambda pair: -pair[0].y1)
    for index, (one, text) in enumerate(boxes):
        for other, other_text in itertools.takewhile(lambda pair, one=one: pair[0].y1 > one.y0, boxes[index + 1 :]):
            across = min(one.x1, other.x1) - max(one.x0, other.x0)
            down = min(one.y1, other.y1) - max(one.y0, other.y0)
            # Boxes hold room for the tallest letters: lines one above the other may share a pixel or two of it.
            assert across <= 0 or down <= 3, (text, other_text)


def test_names_are_written_as_they_are() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = memory_map(MemoryMap((buffer(name='a["$x$"]["кв"]["键"].\n_b'),)))
        figure.canvas.draw()
    assert 'a["$x$"]["кв"]["\\u952e"].\\n_b' in texts(figure)


def test_an_empty_map_says_so() -> None:
    figure = memory_map(MemoryMap(), title="Step 3")
    assert texts(figure)[0] == "Step 3"
    assert "no buffers" in texts(figure)[1]
    assert (_pixels(figure) < 128).any()


def test_counts_are_in_the_head() -> None:
    memory = many(900, 4)
    total = f"{sum(one.nbytes for one in memory.buffers) / (1 << 20):.1f} MiB"
    [counts] = memory_map(memory).findobj(lambda one: one.get_gid() == "counts")
    assert counts.get_text().startswith(f"900 buffers, {total}, ")
    assert "4 findings on 4 buffers" in counts.get_text()


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_formats(tmp_path: Path, suffix: str, start: bytes) -> None:
    path = save_memory_map(many(5, 2), tmp_path / f"map{suffix}")
    content = path.read_bytes()
    assert content.startswith(start)
    assert [one.name for one in tmp_path.iterdir()] == [f"map{suffix}"]
    if suffix == ".svg":
        assert b'id="damage:2"' in content


@pytest.mark.parametrize("name", ["map.jpg", "map", ".png", "map.png.tmp"])
def test_an_unknown_suffix(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"must end in \.png, \.svg or \.pdf"):
        save_memory_map(MemoryMap(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_or_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    for path in (tmp_path / "none" / "map.png", tmp_path / "file" / "map.png", tmp_path / "folder.png"):
        with pytest.raises(MissingFileError, match=r"^cannot write [^\n]*$"):
            save_memory_map(MemoryMap(), path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "folder.png"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "map.png"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(MissingFileError, match="No space left"):
        save_memory_map(MemoryMap(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match=r"^[^\n]*pip install 'matplotlib>=3\.9'$"):
        memory_map(MemoryMap())


@pytest.mark.slow
def test_threads_may_draw_at_once() -> None:
    memory = many(60)
    with ThreadPoolExecutor(4) as pool:
        pictures = list(pool.map(lambda _: _pixels(memory_map(memory)), range(4)))
    assert all((picture == pictures[0]).all() for picture in pictures)

"""Which buffers get a row, and the scales that rows and the strip are drawn at."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from map_makers import BASE, buffer, damage, many, past_end

from shadowgraph.common.errors import UsageError
from shadowgraph.common.words import size
from shadowgraph.render.plots.page import COLUMNS
from shadowgraph.views.map_rows import MOST_ROWS, Fold, Row, rows_of
from shadowgraph.views.memory_map import MapAlias, MemoryMap
from shadowgraph.views.scales import address_axis, row_scale, spread, zoom_window


def _shown(rows: tuple[Row | Fold, ...]) -> list[int]:
    return [row.index for row in rows if isinstance(row, Row)]


@given(st.integers(0, 300), st.integers(0, 20), st.integers(1, 60), st.integers(0, 5))
def test_every_buffer_is_in_one_row_or_one_fold(count: int, damaged: int, limit: int, seed: int) -> None:
    memory = many(max(count, 3 * damaged + 20), damaged, seed=seed)
    rows = rows_of(memory, limit)
    covered = [i for row in rows for i in (range(row.first, row.stop) if isinstance(row, Fold) else [row.index])]
    assert covered == list(range(len(memory.buffers)))
    assert set(memory.damaged) <= set(_shown(rows))
    assert all(fold.count > 1 and not fold.damaged for fold in rows if isinstance(fold, Fold))
    for fold in (row for row in rows if isinstance(row, Fold)):
        assert fold.nbytes == sum(one.nbytes for one in memory.buffers[fold.first : fold.stop])


def test_nothing_is_folded_up_to_the_limit() -> None:
    assert _shown(rows_of(many(40), 40)) == list(range(40))


def test_neighbours_come_before_names_and_names_before_size() -> None:
    names = {5: "a", 15: "b"}
    sizes = {10: 9000, 30: 8000, 40: 7000}
    buffers = tuple(buffer(BASE + i * 16384, sizes.get(i, 100), names.get(i, "")) for i in range(50))
    memory = MemoryMap(buffers, (past_end(1, 20, buffers[20], 4),))
    assert _shown(rows_of(memory, 1)) == [20]
    assert _shown(rows_of(memory, 3)) == [19, 20, 21]
    assert _shown(rows_of(memory, 5)) == [5, 15, 19, 20, 21]
    assert _shown(rows_of(memory, 7)) == [5, 10, 15, 19, 20, 21, 30]


def test_a_run_of_one_is_shown() -> None:
    buffers = tuple(buffer(BASE + i * 16384, 100, "" if i == 1 else str(i)) for i in range(3))
    assert _shown(rows_of(MemoryMap(buffers), 2)) == [0, 1, 2]


def test_too_many_damaged_buffers_are_counted_where_they_are_folded() -> None:
    memory = many(1500, damaged=MOST_ROWS + 150)
    rows = rows_of(memory, 40)
    folded = sum(row.damaged for row in rows if isinstance(row, Fold))
    shown = set(_shown(rows)) & set(memory.damaged)
    assert folded == 150
    assert shown == set(memory.damaged[:MOST_ROWS])


@pytest.mark.parametrize("limit", [0, -1, MOST_ROWS + 1])
def test_a_limit_out_of_range(limit: int) -> None:
    with pytest.raises(UsageError, match=f"1 to {MOST_ROWS}, not {limit}"):
        rows_of(many(5), limit)


def test_owners_of_the_same_view_share_a_line_and_the_rest_is_counted() -> None:
    same = tuple(MapAlias(f"layer[{i}].out", "", BASE, BASE + 4000) for i in range(36))
    parts = tuple(MapAlias(f"w[{i}].part", f"[{i}]", BASE + i, BASE + i + 1) for i in range(9))
    [row] = rows_of(MemoryMap((buffer(aliases=same + parts),)), 40)
    assert isinstance(row, Row)
    assert (len(row.owners[0].names), row.owners[0].names[0]) == (36, "layer[0].out")
    assert len(row.owners) + row.more_owners == 10


def test_a_rows_scale_fills_its_columns_and_reaches_far_damage() -> None:
    own = buffer()
    scale = row_scale(own, (), COLUMNS)
    assert scale.span(own.start, own.stop) == COLUMNS.payload
    assert scale.span(own.start - 512, own.start) == COLUMNS.head
    assert scale.span(own.stop, own.stop + 4096) == COLUMNS.tail
    far = damage(1, 0, own.stop + 9000, own.stop + 9999)
    assert row_scale(own, (far,), COLUMNS).x(own.stop + 10000) == pytest.approx(sum(COLUMNS.tail) / 2)


@given(st.integers(-600, 5000), st.integers(1, 9000))
def test_a_zoom_shows_damage_and_more(offset: int, length: int) -> None:
    own = buffer()
    found = damage(1, 0, BASE + offset, BASE + offset + length - 1)
    start, stop = zoom_window(own, found)
    outside = [a for a in (found.first, found.last) if not own.start <= a < own.stop]
    for address in outside or (found.first, found.last):
        assert start < address < stop - 1
    if length < 128 and (found.last >= own.stop > found.first or found.first == own.stop):
        assert start < own.stop < stop


def test_a_zoom_leaves_out_an_edge_far_away() -> None:
    own = buffer(tail_guard=1 << 20)
    start, stop = zoom_window(own, damage(1, 0, own.stop + 500_000, own.stop + 500_003))
    assert start > own.stop
    assert stop - start < 64


_SPANS = st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 1 << 24)), min_size=1, max_size=50)


@given(_SPANS)
def test_the_axis_is_monotonic_and_fills_its_room(pairs: list[tuple[int, int]]) -> None:
    ranges = [(start, start + nbytes) for start, nbytes in pairs]
    axis = address_axis(ranges, 1.0, 11.0)
    assert axis.scale.places[0] == 1.0
    assert axis.scale.places[-1] == pytest.approx(11.0)
    assert all(one <= other for one, other in pairwise(axis.scale.places))
    assert all(one < other for one, other in pairwise(axis.scale.addresses))
    assert all(axis.scale.x(start) < axis.scale.x(stop) for start, stop in axis.islands)
    assert all(any(low <= start and stop <= high for low, high in axis.islands) for start, stop in ranges)


def test_the_axis_keeps_proportions_and_folds_a_wide_gap() -> None:
    mib = 1 << 20
    axis = address_axis([(0, mib), (mib, 4 * mib), (1 << 40, (1 << 40) + 4 * mib)], 0.0, 10.0)
    assert axis.folded_nbytes == (1 << 40) - 4 * mib
    [(left, right)] = axis.folds
    assert right - left < 0.1
    first, second, third = axis.scale.x(mib), axis.scale.x(4 * mib) - axis.scale.x(mib), 10.0 - right
    assert second == pytest.approx(3 * first, rel=0.01)
    assert third == pytest.approx(first + second, rel=0.01)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 0.9)), max_size=9))
def test_labels_are_spread_without_overlap(labels: list[tuple[float, float]]) -> None:
    labels.sort()
    widths = [width for _, width in labels]
    lefts = spread([centre for centre, _ in labels], widths, (0.0, 10.0))
    ends = [left + width for left, width in zip(lefts, widths, strict=True)]
    assert all(left >= -1e-9 and end <= 10 + 1e-9 for left, end in zip(lefts, ends, strict=True))
    assert all(end <= left + 1e-9 for end, left in zip(ends, lefts[1:], strict=False))


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (864, "864 B"), (1023, "1023 B"), (1024, "1 KiB"), (3 << 19, "1.5 MiB"), ((1 << 30) - 1, "1 GiB")],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert size(nbytes) == text

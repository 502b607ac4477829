"""The interactive map: its columns are the model's, its page is whole, and a browser draws what they say."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from map_makers import BASE, buffer, damage, many, past_end
from support.browser import loaded, needs_browser

import shadowgraph as sg
from shadowgraph.common.errors import UsageError
from shadowgraph.render.plots.browsing import chart_of, lanes_of, strip_of
from shadowgraph.views.memory_map import MapAlias, MemoryMap

pytest.importorskip("bokeh")

from shadowgraph.render.plots.interactive import interactive_map


def small() -> MemoryMap:
    """An overrun buffer with another owner, one with damage inside, a far one, and a freed one over the first."""
    table = buffer(BASE, 64, "draft.table", aliases=(MapAlias("draft.last", "[3]", BASE + 48, BASE + 64),))
    freed = buffer(BASE + 32, 64, "old", alive=False, head_guard=0, tail_guard=0)
    indptr = buffer(BASE + 8192, 40, "draft.indptr", role="pool", graph="graph#1")
    far = buffer(BASE + (1 << 36), 1 << 20, "far", role="foreign", head_guard=0, tail_guard=0)
    buffers = (table, freed, indptr, far)
    inside = damage(2, 2, indptr.start + 4, indptr.start + 11, ranges=((indptr.start + 4, indptr.start + 11),), count=3)
    return MemoryMap(buffers, (past_end(1, 0, table, 24), inside))


@pytest.mark.parametrize("memory", [small(), many(300), many(300, seed=5)])
def test_columns_are_the_models(memory: MemoryMap) -> None:
    chart = chart_of(memory)
    assert [int(start) for start in chart.buffers["start"]] == [each.start for each in memory.buffers]
    assert [int(nbytes) for nbytes in chart.buffers["nbytes"]] == [each.nbytes for each in memory.buffers]
    assert chart.buffers["name"] == [each.name for each in memory.buffers]
    guards = [(b.start - b.head_guard, b.head_guard) for b in memory.buffers if b.head_guard]
    guards += [(b.tail[0], b.tail_guard) for b in memory.buffers if b.tail_guard]
    assert sorted(zip(chart.guards["start"], chart.guards["nbytes"], strict=True)) == sorted(guards)
    owners = [(alias.name, alias.start) for each in memory.buffers for alias in each.aliases]
    assert list(zip(chart.owners["name"], chart.owners["start"], strict=True)) == owners
    pieces = [(d.finding, first, last + 1 - first) for d in memory.damages for first, last in d.pieces]
    known = zip(chart.damages["finding"], chart.damages["start"], chart.damages["nbytes"], strict=True)
    assert list(known) == pieces
    assert chart.marks["finding"] == [each.finding for each in memory.damages]


@pytest.mark.parametrize("memory", [small(), many(300), many(300, seed=5)])
def test_both_scales_keep_the_order_and_the_inside_of_bytes(memory: MemoryMap) -> None:
    chart = chart_of(memory)
    for name, scale in chart.scales.items():
        assert (np.diff(scale.addresses) > 0).all()
        assert (np.diff(scale.places) > 0).all(), "every part can be told from its neighbour"
        for kind in (chart.buffers, chart.guards, chart.damages, chart.owners):
            left, right = (np.asarray(kind[f"{side}_{name}"]) for side in ("left", "right"))
            start, nbytes = np.asarray(kind["start"]), np.maximum(np.asarray(kind["nbytes"]), 1)
            assert (left < right).all()
            np.testing.assert_allclose(scale.at(start), left)
            np.testing.assert_allclose(scale.at(start + nbytes), right)
    widths = np.asarray(chart.buffers["right_bytes"]) - np.asarray(chart.buffers["left_bytes"])
    np.testing.assert_array_equal(widths, chart.buffers["nbytes"])  # bytes in proportion, exactly


def test_wide_gaps_are_folded_and_said() -> None:
    chart = chart_of(small())
    (gap,) = chart.gaps["nbytes"]
    assert 1 << 35 < gap < 1 << 36
    total = chart.ends["bytes"][1]
    assert chart.gaps["right_bytes"][0] - chart.gaps["left_bytes"][0] <= total / 4
    assert total < 4 * (1 << 20)


def test_what_a_bar_says() -> None:
    chart = chart_of(small())
    assert chart.buffers["also"] == ["draft.last is draft.table[3]", "", "", ""]
    assert chart.buffers["role"] == ["static", "static, freed", "pool of graph#1", "foreign"]
    assert chart.buffers["form"][0] == "uint8[64]"
    assert chart.buffers["findings"] == [
        "#1 SG101: +24 B past the end by fill in replay 3 of graph#1",
        "",
        "#2 SG101: 3 B inside by fill in replay 3 of graph#1",
        "",
    ]
    assert chart.damages["exact"] == [1, 0], "of eight bytes three changed"


def test_buffers_that_overlap_have_rows_of_their_own() -> None:
    memory = small()
    lanes = lanes_of(memory.buffers)
    assert lanes == [0, 1, 0, 0], "the freed one lies over the first, and below it"
    stacked = [buffer(BASE + step, 100, alive=True) for step in range(9)]
    assert lanes_of(stacked) == [0, 1, 2, 3, 4, 5, 5, 5, 5]
    apart = many(200).buffers
    assert set(lanes_of(apart)) == {0}


def test_the_strip_shows_each_role_where_it_is_most() -> None:
    memory = many(3_000)
    chart = chart_of(memory)
    strip = strip_of(memory, chart, "bytes")
    assert set(strip) == {each.role for each in memory.buffers}
    assert sum(len(left) for left, _ in strip.values()) <= 1_200, "as many bars as can be told apart"
    largest = max(range(3_000), key=lambda index: memory.buffers[index].nbytes)
    middle = (chart.buffers["left_bytes"][largest] + chart.buffers["right_bytes"][largest]) / 2
    left, right = strip[memory.buffers[largest].role]
    assert any(one <= middle < other for one, other in zip(left, right, strict=True))


def test_names_cannot_leave_their_place(tmp_path: Path) -> None:
    evil = "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">\u202e"
    memory = MemoryMap((buffer(BASE, 64, evil),))
    page = interactive_map(memory, title=evil).html()
    assert "<img src=x" not in page
    assert "<script>document.title" not in page
    assert "\u202e" not in page
    assert interactive_map(memory)._repr_html_().count("<script>document.title") == 0


@pytest.mark.slow
def test_pages_are_whole_and_ask_nobody(tmp_path: Path) -> None:
    drawn = interactive_map(small())
    path = drawn.save(tmp_path / "map.html")
    page = path.read_text("utf-8")
    markup = re.sub(r"(<script[^>]*>).*?</script>", r"\1", page, flags=re.DOTALL)
    assert markup.count("<script") >= 4
    assert not re.search(r"(src|href)=|url\(|@import|https?:", markup), "nothing is loaded"
    light = interactive_map(small(), scripts="cdn").html()
    assert len(light) < 150_000 < len(page)
    assert 'src="https://cdn.bokeh.org/' in light
    shown = drawn._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert repr(drawn) == "<InteractiveMap: 4 buffers, 1 MiB, 2 guarded; 2 findings on 2 buffers>"
    assert os.listdir(tmp_path) == ["map.html"]


def test_nothing_to_show_says_so() -> None:
    page = interactive_map(MemoryMap()).html()
    assert "no buffers: nothing was allocated under guard(), captured or declared" in page


def test_it_is_made_of_debuggers_and_dumps(tmp_path: Path) -> None:
    import torch

    from shadowgraph.dumps.reader import read_dump

    with sg.debug() as debugger:
        with debugger.guard():
            table = torch.zeros(16)
        debugger.name("table", table)
        with read_dump(debugger.dump(tmp_path / "run.dump")) as dump:
            kept = sg.plots.interactive_map(dump)
        live = sg.plots.interactive_map(debugger)
        assert kept.map == live.map == MemoryMap.of(debugger)
        assert "table" in {each.name for each in live.map.buffers}
    with pytest.raises(UsageError, match="takes a debugger, a dump or a MemoryMap, not dict"):
        interactive_map({})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'inline' or 'cdn', not 'web'"):
        interactive_map(MemoryMap(), scripts="web")  # type: ignore[arg-type]


def test_without_bokeh_it_is_one_line(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['bokeh'] = None\n"
        "import shadowgraph as sg\n"
        "from shadowgraph.views.memory_map import MemoryMap\n"
        "try: sg.plots.interactive_map(MemoryMap())\n"
        "except sg.ShadowgraphError as error: print(error, error.exit_code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(sg.__file__))},
    )  # fmt: skip
    assert done.stderr == ""
    assert re.fullmatch(r"interactive maps need bokeh \(.*\): pip install 'bokeh>=3\.6' 5\n", done.stdout)


# -- in a browser ----------------------------------------------------------------------------------------------


SHOW_ALL = "by('all').trigger_event({event_name: 'button_click', sync: false})"


def browsed(page: str, folder: Path, ask: str, do: str = "", dark: bool = False) -> Any:
    """What a line of JavaScript gives in the page once it is drawn, and another was done."""
    wait = (
        "() => { const doc = window.Bokeh?.documents?.[0]; if (!doc?.is_idle) return; "
        "const models = [...doc._all_models.values()]; const by = (name) => models.find((m) => m.name === name); "
        f"if (!window.done) {{ window.done = 1; {do}; return; }} if (window.done++ > 6) return {ask}; }}"
    )
    return answered(page, folder, wait, dark)


def answered(page: str, folder: Path, ask: str, dark: bool = False) -> Any:
    """The first value of a function of the page, asked again and again."""
    head, end, tail = page.rpartition("</body>")
    script = (
        f"<script>const asked = {ask}; const wait = setInterval(() => {{ const said = asked(); if (!said) return; "
        "clearInterval(wait); const text = JSON.stringify(said); document.body.innerHTML = '<pre id=said></pre>'; "
        "document.getElementById('said').textContent = text; }, 50);</script>"
    )
    path = folder / "asked.html"
    path.write_text(head + script + end + tail, "utf-8")
    found = re.search(r'<pre id="said">(.*?)</pre>', loaded(path.as_uri(), folder, dark), re.DOTALL)
    assert found is not None
    return json.loads(html.unescape(found[1]))


@pytest.mark.slow
@needs_browser
def test_a_browser_draws_the_model(tmp_path: Path) -> None:
    memory = small()
    ask = "Object.fromEntries(['buffers','guards','owners','damages'].map((k) => [k, by(`${k}:log`).data_source.data]))"
    drawn = browsed(interactive_map(memory).html(), tmp_path, ask, SHOW_ALL)
    assert drawn["buffers"]["name"] == [each.name for each in memory.buffers]
    assert drawn["buffers"]["address"][0] == f"{BASE:#x} to {BASE + 63:#x}"
    assert drawn["buffers"]["guard"][0] == "512 B before, 4,096 B after"
    assert drawn["buffers"]["size"][3] == "1,048,576 B (1 MiB)"
    assert drawn["guards"]["name"][:2] == ["before draft.table", "after draft.table"]
    assert drawn["owners"]["relation"] == ["draft.table[3]"]
    assert drawn["damages"]["told"][0] == "#1 SG101: +24 B past the end by fill in replay 3 of graph#1"
    assert drawn["damages"]["hatch"] == [" ", "x"]


@pytest.mark.slow
@needs_browser
def test_many_buffers_are_joined_until_somebody_zooms(tmp_path: Path) -> None:
    memory = many(5_000)
    page = interactive_map(memory).html()
    drawn = browsed(page, tmp_path, "by('buffers:log').data_source.data", SHOW_ALL)
    assert 200 < len(drawn["name"]) <= 1_500, "no more than can be told apart"
    counted = [
        int(found[1].replace(",", "")) for name in drawn["name"] if (found := re.match(r"([\d,]+) buffers; ", name))
    ]
    assert sum(counted) + len(drawn["name"]) - len(counted) == 5_000, "each buffer is in one bar"
    assert sum("on 1 of them" in text or text.startswith("#") for text in drawn["findings"]) == 3
    assert memory.buffers[416].name == "runner.backends[416].kv_indices"
    seen = "by('buffers:log').data_source.data.name"
    ask = f"[by('map:log').x_range.start, {seen}, by('table:buffers').view.filter.indices]"
    start, names, rows = browsed(page, tmp_path, ask, "by('find').value = 'backends[416]'")
    assert 0 < start < chart_of(memory).buffers["left_log"][416]
    assert "runner.backends[416].kv_indices" in names
    assert len(names) < 20
    assert rows == [416]


@pytest.mark.slow
@needs_browser
def test_it_opens_on_the_first_finding_and_shows_all_on_request(tmp_path: Path) -> None:
    memory = many(5_000)
    page, chart = interactive_map(memory).html(), chart_of(memory)
    here = "(({start, end}) => [start, end])(by('map:log').x_range)"
    labels = "by('labels:log').data_source.data.text"
    names = "by('buffers:log').data_source.data.name"
    height = "by('map:log').height"
    ask = f"[{here}, {labels}, {names}, {height}, by('marks').selected.indices]"
    window, said, near, low, selected = browsed(page, tmp_path, ask)
    first = memory.damages[0]
    home = first.buffer
    assert window == [chart.marks["from_log"][0], chart.marks["to_log"][0]]
    assert window[0] < chart.buffers["left_log"][home] < chart.marks["right_log"][0] < window[1]
    assert chart.marks["caption"][0] in said, "victim and culprit are named in the window that it opens on"
    assert memory.buffers[home].name in near
    assert len(near) < 30
    assert selected == [0]
    window, said, near, high, selected = browsed(page, tmp_path, ask, SHOW_ALL)
    assert window == list(chart.ends["log"])
    assert [text.split()[0] for text in said] == chart.marks["label"], "each finding keeps its number"
    assert len(near) > 200
    assert selected == []
    window, said, *_ = browsed(page, tmp_path, ask, "by('marks').selected.indices = [2]")
    assert window == [chart.marks["from_log"][2], chart.marks["to_log"][2]]
    assert chart.marks["caption"][2] in said
    assert low <= high


@pytest.mark.slow
@needs_browser
def test_a_label_stays_while_its_buffer_is_visible(tmp_path: Path) -> None:
    """Zoomed into the buffer, away from the broken bytes behind its end, the finding is still named."""
    memory = small()
    chart = chart_of(memory)
    left, right = chart.buffers["left_log"][0], chart.buffers["right_log"][0]
    into = f"by('map:log').x_range.setv({{start: {left}, end: {left + (right - left) / 3}}})"
    ask = "by('labels:log').data_source.data"
    drawn = browsed(interactive_map(memory).html(), tmp_path, ask, into)
    assert drawn["text"] == [chart.marks["caption"][0]]
    assert left <= drawn["x"][0] <= left + (right - left) / 3
    away = f"by('map:log').x_range.setv({{start: {chart.ends['log'][1] - 8}, end: {chart.ends['log'][1]}}})"
    assert browsed(interactive_map(memory).html(), tmp_path, ask, away)["text"] == []


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_it_follows_the_theme_of_the_browser(dark: bool, tmp_path: Path) -> None:
    ask = (
        "[document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor, "
        "by('map:log').background_fill_color, by('labels:log').glyph.text_color.value, "
        "by('guards:log').glyph.fill_color.value]"
    )
    theme, page, plot, label, guard = browsed(interactive_map(small()).html(), tmp_path, ask, dark=dark)
    assert theme == ("dark" if dark else "light")
    assert page == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
    assert (plot, guard) == (("#14181d", "#14181d") if dark else ("#ffffff", "#ffffff"))
    assert label == ("#e6e9ed" if dark else "#1b1f24")


@pytest.mark.slow
@needs_browser
def test_it_follows_the_theme_of_the_notebook_around_it(tmp_path: Path) -> None:
    frame = interactive_map(small())._repr_html_()
    ask = "document.querySelector('iframe').contentDocument.documentElement.dataset.theme"
    for theme, light in (("dark", "false"), ("light", "true")):
        page = f'<html><body data-jp-theme-light="{light}">{frame}</body></html>'
        assert answered(page, tmp_path, f"() => {ask}", dark=theme == "light") == theme


@pytest.mark.slow
@needs_browser
def test_names_in_tables_keep_their_ends(tmp_path: Path) -> None:
    name = f"{'runner.attn_backend.' * 6}cuda_graph_kv_indices"
    memory = MemoryMap((buffer(BASE, 64, name),), (past_end(1, 0, buffer(BASE, 64, name), 8),))
    drawn = interactive_map(memory)
    cell = (
        "() => { const found = []; const walk = (root) => root.querySelectorAll('*').forEach((each) => { "
        "if (each.className === 'tail') found.push(each); if (each.shadowRoot) walk(each.shadowRoot); }); "
        "walk(document); return found.length > 1 && found.map((each) => { "
        "const inner = each.firstChild.getBoundingClientRect(), outer = each.getBoundingClientRect(); "
        "return [each.title, inner.right - outer.right, inner.left - outer.left]; }); }"
    )
    for title, end, begin in answered(drawn.html(), tmp_path, cell):
        assert title == name
        assert end <= 1, "the end is inside of its cell"
        assert begin < -100, "the beginning is not"


@pytest.mark.slow
@needs_browser
def test_no_name_is_run_by_a_browser(tmp_path: Path) -> None:
    evil = "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
    page = interactive_map(MemoryMap((buffer(BASE, 64, evil),)), title=evil).html()
    title, name = browsed(page, tmp_path, "[document.title, by('buffers').data.name[0]]")
    assert title != "pwned"
    assert name == evil

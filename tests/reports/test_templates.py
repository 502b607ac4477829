"""HTML comes from templates that escape every text; no code puts markup and text together."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from reports.page_reading import read_page

import shadowgraph
from shadowgraph.render.engine import _environment, harmless, render
from shadowgraph.wrap.status.page import StatusPage
from shadowgraph.wrap.status.tables import Link, Table, Tile

PACKAGE = Path(shadowgraph.__file__).parent
TEMPLATES = PACKAGE / "render" / "templates"
MARKUP = re.compile(
    r"</?(a|b|body|br|code|dd|div|dl|dt|h[1-6]|head|html|iframe|img|li|meta|nav|p|pre|span|style|t[dhr]|table|ul)\b"
)
FOR_BOKEH = "<code>0x<%= value.toString(16) %></code>"  # a template of Bokeh's own, for numbers
HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}'\u202egpj\u2066\x1b[2J\x00&lt;"


def markup_in(path: Path) -> Iterator[str]:
    """The strings of a module, other than docstrings, that hold an element of HTML."""
    tree = ast.parse(path.read_text("utf-8"))
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said
        if is_text and MARKUP.search(node.value):
            yield node.value


def test_markup_stands_in_templates_alone() -> None:
    found = {(path.relative_to(PACKAGE).as_posix(), text) for path in PACKAGE.rglob("*.py") for text in markup_in(path)}
    assert found == {("render/plots/bokeh_page.py", FOR_BOKEH)}


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.html")), ids=lambda path: path.name)
def test_no_template_lets_a_text_through(path: Path) -> None:
    source = path.read_text("utf-8")
    assert not re.search(r"\|\s*safe\b|autoescape|Markup", source)
    assert _environment().autoescape is True
    whole = "<!doctype" in source
    assert whole == (path.name == "base.html"), "whole pages extend the base"


@pytest.mark.parametrize("value", [HOSTILE, Path(HOSTILE.replace("\x00", "")), ValueError(HOSTILE)])
def test_anything_but_a_number_is_made_harmless(value: object) -> None:
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", harmless(value))
    assert harmless(7) == 7


def test_hostile_texts_stay_texts_on_the_status_page() -> None:
    def page(text: str) -> StatusPage:
        table = Table.of("findings", ("#", text), [(1, text), (2, Link(text, "finding/2"))], left_out=3)
        tiles = (Tile("notes", text, text), Tile("faults", text, text, "warn"))
        return StatusPage(text, True, text, text, text, tiles, text, table, table, (text,), "12:00:00")

    evil, plain = (read_page(render("status.html", page=page(text))) for text in (HOSTILE, "plain"))
    assert evil.tags == plain.tags
    assert evil.attributes == plain.attributes
    assert evil.scripts == []
    assert evil.words.count("<script>alert(1)</script>") == plain.words.count("plain") >= 10
    assert "{{ 7*7 }}" in evil.words


def test_a_hostile_title_and_page_stay_inside_of_a_frame() -> None:
    shown = render("frame.html", page=f"<p>{HOSTILE}</p>" * 1000, title=HOSTILE, height=300)
    page = read_page(shown)
    assert page.tags == ["iframe"]
    frame = {name: value for _, name, value in page.attributes}
    assert frame["srcdoc"].count("<p>") == 1000, "a page is not cut"
    assert frame["title"].startswith('"><script>')
    head = read_page(render("map_head.html", title=HOSTILE, counts=HOSTILE))
    assert head.tags == ["b", "br"]
    assert head.words.count("<script>alert(1)</script>") == 2

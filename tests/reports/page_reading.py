"""Reads a page as a browser would, far enough for tests: what it says, which elements it has, what it asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "img", "input", "br", "link", "hr"}
APART = {"p", "div", "td", "th", "tr", "dt", "dd", "h1", "h2", "h3", "li", "summary", "pre", "caption"}


@dataclass
class Page:
    """What was read.

    Attributes
    ----------
    words
        All text outside of scripts and styles, white space folded.
    attributes
        Element, name and value of each.
    """

    words: str = ""
    tags: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    unclosed: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self._open: list[str] = []
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.tags.append(tag)
        self.page.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)
        if tag in APART:
            self._text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes another element"
        if tag in APART:
            self._text.append(" ")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.page.scripts.append(data)
        elif not self._open or self._open[-1] != "style":
            self._text.append(data)

    def close(self) -> None:
        super().close()
        self.page.words = " ".join("".join(self._text).split())
        self.page.unclosed = list(self._open)


def read_page(text: str) -> Page:
    """A page or a fragment, every element of which is closed where it was opened."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert reader.page.unclosed == []
    return reader.page


def folded(text: str) -> str:
    """A text with white space as `Page.words` has it."""
    return " ".join(text.split())

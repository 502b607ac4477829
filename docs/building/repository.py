"""Texts that have their one place outside the docs: sections of the README, and the changelog."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.errors import ExtensionError

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def readme(title: str) -> str:
    """A section of the README without its heading, its links made those of a page in ``docs``.

    Raises
    ------
    ExtensionError
        When the README has no such section.
    """
    text = (ROOT / "README.md").read_text("utf-8")
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ExtensionError(f"README.md has no section {title!r}")
    return from_docs(found[1].strip())


def changelog() -> str:
    """The changelog without its title."""
    return from_docs((ROOT / "CHANGELOG.md").read_text("utf-8").partition("\n")[2].strip())


def from_docs(markdown: str) -> str:
    """Text of the repository's root as it reads in ``docs``: links to folders, which no page can show, are text."""

    def moved(link: re.Match[str]) -> str:
        said, target, anchor = link[1], link[2], link[3] or ""
        if re.match(r"\w+:", target):
            return link[0]
        if (ROOT / target).is_dir():
            return f"`{said}`"
        if said == target and target.startswith("docs/"):
            said = ""  # the page's own title
        return f"[{said}]({Path(target).relative_to('docs') if target.startswith('docs/') else '../' + target}{anchor})"

    return _LINK.sub(moved, markdown)

"""Texts that have their one place in the repository's root: the changelog, how to contribute, what is trusted."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
# Texts of the root that are pages of the docs, too.
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}


def root(name: str) -> str:
    """A text of the root without its title."""
    return from_docs((ROOT / name).read_text("utf-8").partition("\n")[2].strip())


def from_docs(markdown: str) -> str:
    """Text of the repository's root as it reads in ``docs``: links to folders, which no page can show, are text."""

    def moved(link: re.Match[str]) -> str:
        said, target, anchor = link[1], link[2], link[3] or ""
        if re.match(r"\w+:", target):
            return link[0]
        if (ROOT / target).is_dir():
            return f"`{said}`"
        inner = target.startswith("docs/")
        there = target.removeprefix("docs/") if inner else PAGES.get(target, f"../{target}")
        return f"[{there if said == target else said}]({there}{anchor})"

    return _LINK.sub(moved, markdown)

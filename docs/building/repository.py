"""Texts that have their one place outside the docs: the changelog."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


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
        inner = target.startswith("docs/")
        there = target.removeprefix("docs/") if inner else f"../{target}"
        return f"[{there if said == target else said}]({there}{anchor})"

    return _LINK.sub(moved, markdown)

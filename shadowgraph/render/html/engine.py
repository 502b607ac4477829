"""The template engine: every text is escaped, and gives neither a terminal nor a browser orders."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowgraph.common.console import tame

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).with_name("templates")
_LONGEST = 2_000  # characters of one text: a made-up dump may have names of a megabyte


def render(template: str, **values: Any) -> str:
    """A template filled with values, as text that UTF-8 can hold."""
    return _environment().get_template(template).render(values)


def style() -> str:
    """The style of pages and fragments."""
    return (_TEMPLATES / "style.css").read_text("utf-8").strip()


def script() -> str:
    """What filters a page; it works without."""
    return (_TEMPLATES / "filter.js").read_text("utf-8").strip()


def digest(text: str) -> str:
    """What a content security policy calls an inline script, so that no other one runs."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def harmless(value: Any) -> Any:
    """What stands for a value on a page; markup of our own templates stays what it is."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    text = tame(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... and {len(text) - _LONGEST:,} more characters"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # heavy, and no other verb needs it

    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=harmless,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters["commas"] = lambda number: f"{number:,}"
    return made

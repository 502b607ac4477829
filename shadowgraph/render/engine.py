"""Template engine of all HTML: every text is escaped, and its control characters are neutralised.

The templates are package data, one base page and one style sheet among them. Called by report pages, notebook cells,
interactive maps and the status server, in any thread.
"""

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
_LONGEST = 2_000  # characters of one text: a forged dump may have names of a megabyte


def render(template: str, **values: Any) -> str:
    """A template filled with values, as text that UTF-8 can hold."""
    return _environment().get_template(template).render(values)


def style() -> str:
    """The style sheet of pages and fragments, light and dark; every template has it as `style`."""
    return (_TEMPLATES / "style.css").read_text("utf-8").strip()


def script() -> str:
    """The script that filters a page; the page works without it."""
    return (_TEMPLATES / "filter.js").read_text("utf-8").strip()


def source(template: str) -> str:
    """A template as it is written, for a page that another library renders; or a style sheet."""
    return (_TEMPLATES / template).read_text("utf-8").strip()


def digest(text: str) -> str:
    """The hash of an inline script for a content security policy, which then blocks all other scripts."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def harmless(value: Any) -> Any:
    """The safe form of a value for a page; markup of the package's own templates, and numbers, are kept as they are."""
    if hasattr(value, "__html__") or isinstance(value, (int, float)):
        return value
    text = tame(str(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... and {len(text) - _LONGEST:,} more characters"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # slow to import, and few verbs use it
    from markupsafe import Markup

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
    made.globals["style"] = Markup(style())
    return made

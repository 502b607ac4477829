"""Parts of pages that are made from the code: a line ``<!-- put: name argument -->`` becomes what its maker returns."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from building.command_line import command_line
from building.costs import costs
from building.exit_codes import exit_codes, verb_codes
from building.kinds import kinds
from building.repository import changelog, readme
from building.settings_text import settings_table, settings_text

MAKERS: dict[str, Callable[..., str]] = {
    "changelog": changelog,
    "command-line": command_line,
    "costs": costs,
    "exit-codes": exit_codes,
    "kinds": kinds,
    "readme": readme,
    "settings": settings_text,
    "settings-table": settings_table,
    "verb-codes": verb_codes,
}
_MARK = re.compile(r"^<!-- put: (.+) -->$", re.MULTILINE)


def filled(page: str) -> str:
    """The page with every mark replaced.

    Raises
    ------
    ExtensionError
        For a mark that nobody makes.
    """

    def made(mark: re.Match[str]) -> str:
        name, *arguments = shlex.split(mark[1])
        if name not in MAKERS:
            raise ExtensionError(f"nothing makes {name!r}; known are: {', '.join(sorted(MAKERS))}")
        return MAKERS[name](*arguments)

    return _MARK.sub(made, page)


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = filled(source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", _read)

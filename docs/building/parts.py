"""Parts of pages that are made from the code.

What stands between ``<!-- put: name argument -->`` and ``<!-- end -->`` is what the maker of that name returns.
`tools/update_docs.py` writes it, so that the pages can be read where nothing builds them; a test holds it current.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from building.api_names import api_names
from building.command_line import command_line
from building.costs import costs
from building.exit_codes import exit_codes, verb_codes
from building.kinds import kinds
from building.repository import root
from building.settings_text import settings_table, settings_text
from building.support import run_on, support

MAKERS: dict[str, Callable[..., str]] = {
    "api-names": api_names,
    "command-line": command_line,
    "costs": costs,
    "exit-codes": exit_codes,
    "kinds": kinds,
    "root": root,
    "run-on": run_on,
    "settings": settings_text,
    "settings-table": settings_table,
    "support": support,
    "verb-codes": verb_codes,
}
MARK = re.compile(r"^<!-- put: (.+?) -->$", re.MULTILINE)
_PART = re.compile(r"^(<!-- put: (.+?) -->)$.*?^(<!-- end -->)$", re.MULTILINE | re.DOTALL)


def filled(page: str) -> str:
    """The page with every part made again.

    Raises
    ------
    LookupError
        For a mark without an end, or one that nothing makes.
    """

    def made(part: re.Match[str]) -> str:
        name, *arguments = shlex.split(part[2])
        if name not in MAKERS:
            raise LookupError(f"nothing makes {name!r}; known are: {', '.join(sorted(MAKERS))}")
        if MARK.search(part[0], len(part[1])):
            raise LookupError(f"a part {part[2]!r} has no end")
        return f"{part[1]}\n\n{MAKERS[name](*arguments).strip()}\n\n{part[3]}"

    if len(MARK.findall(page)) != len(re.findall(r"^<!-- end -->$", page, re.MULTILINE)):
        raise LookupError("a part has no end, or an end no part")
    return _PART.sub(made, page)

"""What pages say of options and variables is checked against the parsers and the settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

from building.command_line import flags
from building.repository import ROOT
from shadowgraph.common.options import OPTIONS

logger = logging.getLogger(__name__)
# Of other programs and of every verb.
OTHERS = {"--help", "--kv-cache-memory-bytes", "--no-deps", "--padding", "--version"}
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_DEFINED = re.compile(r"[\"'](--[a-z][a-z-]+|SHADOWGRAPH_[A-Z][A-Z_]*)[\"']")
_VARIABLE = re.compile(r"SHADOWGRAPH_[A-Z][A-Z_]*")


def faults_of(text: str) -> Iterator[str]:
    """Options and variables in a piece of code that do not exist.

    In a line that runs a verb they are that verb's, up to a lone ``--``; a piece that begins with an option may name
    one of any verb, of a plugin, or of a tool.
    """
    known = flags()
    variables = defined() | {row.variable for row in OPTIONS}
    yield from (f"no variable is called {word}" for word in _VARIABLE.findall(text) if word not in variables)
    if text.startswith("--"):
        yield from (f"no option is called {flag}" for flag in _FLAG.findall(text) if flag not in defined() | OTHERS)
    for line in text.splitlines():
        verb, own = _ours(line)
        if verb is not None and verb not in known:
            yield f"no verb is called {verb}"
        elif verb is not None:
            allowed = known[verb] | {"--help"}
            yield from (f"no option of {verb} is called {flag}" for flag in _FLAG.findall(own) if flag not in allowed)


@cache
def defined() -> frozenset[str]:
    """Options and variables that the package or its tools name as such, and each setting as an option of a magic."""
    of_magics = {f"--{no}{row.dashed[2:]}" for row in OPTIONS for no in ("", "no-")}
    files = [*(ROOT / "shadowgraph").rglob("*.py"), *(ROOT / "tools").glob("*.py")]
    return frozenset(flag for file in files for flag in _DEFINED.findall(file.read_text("utf-8"))) | of_magics


def _ours(line: str) -> tuple[str | None, str]:
    """The verb that a line runs, and the part of it that is ours."""
    found = re.match(r"\s*(?:\$ )?shadowgraph ([a-z]+)(?=\s|$)(.*)", line)
    if found is None:
        return None, line
    try:
        words = shlex.split(found[2], comments=True)
    except ValueError:
        words = found[2].split()
    own = words[: words.index("--")] if "--" in words else words
    return found[1], " ".join(own)


def _check(app: Sphinx, tree: nodes.document) -> None:
    if app.env.docname == "cli":  # the parsers' own text
        return
    for node in (*tree.findall(nodes.literal), *tree.findall(nodes.literal_block)):
        for fault in faults_of(node.astext()):
            logger.warning("%s", fault, location=node)


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", _check)

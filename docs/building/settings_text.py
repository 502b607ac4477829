"""The settings reference, from `shadowgraph.Settings`: names, variables, defaults, and the text of its docstring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import NamedTuple

from numpydoc.docscrape import ClassDoc

from building.markdown import code, markdown_of, table
from shadowgraph.common.settings import PREFIX, Settings


class Setting(NamedTuple):
    name: str
    variable: str
    default: object
    text: str


def settings() -> Iterator[Setting]:
    """Every option, in the order of the class.

    Raises
    ------
    KeyError
        For an option that the docstring leaves out.
    """
    said = {each.name: " ".join(" ".join(each.desc).split()) for each in ClassDoc(Settings)["Attributes"]}
    for field in fields(Settings):
        yield Setting(field.name, PREFIX + field.name.upper(), field.default, markdown_of(said[field.name]))


def settings_table() -> str:
    rows = [(f"[`{s.name}`](#setting-{s.name})", code(s.variable), code(repr(s.default))) for s in settings()]
    return table(("option", "variable", "default"), rows)


def settings_text() -> str:
    return "\n\n".join(
        f"(setting-{s.name})=\n`{s.name}`\n: {s.text} Default: {code(repr(s.default))}." for s in settings()
    )

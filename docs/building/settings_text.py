"""The reference of options, from the table that everything else has them from: words, variables, defaults, values."""

from __future__ import annotations

from building.markdown import code, markdown_of, table
from shadowgraph.common.options import OPTIONS, CommandLine, Option


def settings_table() -> str:
    """Every option, with its variable, its default, and the values that fit."""
    rows = [
        (f"[`{row.name}`](#{row.name})", code(row.variable), code(repr(row.default)), row.kind.values)
        for row in OPTIONS
    ]
    return table(("option", "variable", "default", "values"), rows)


def settings_text() -> str:
    """What each option is, and which command lines have a flag or a default of their own."""
    return "\n\n".join(
        f"### {row.name}\n\n{markdown_of(row.reference)} Default: {code(repr(row.default))}.{_places(row)}"
        for row in OPTIONS
    )


def _places(row: Option) -> str:
    """The flags of command lines, with their defaults where these differ."""
    lines: tuple[CommandLine, ...] = ("wrap", "pytest")
    told = []
    for line in lines:
        flag, default = row.flags.get(line), row.default_of(line)
        words = [code(name) for name in flag.names] if flag is not None else []
        said = f"{', '.join(words)} of {line}" if words else f"under {line}"
        if words or default != row.default:
            told.append(f"{said} (default: {code(repr(default))})" if default != row.default else said)
    return f" Also {'; '.join(told)}." if told else ""

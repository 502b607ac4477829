"""The command line reference, from the parsers themselves."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from shadowgraph.commands.main import parser


def verbs() -> dict[str, argparse.ArgumentParser]:
    """The parser of each verb, by name."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            found.update(action.choices)
    return found


def flags() -> dict[str, set[str]]:
    """Every option string of each verb."""
    return {name: {f for action in verb._actions for f in action.option_strings} for name, verb in verbs().items()}


def command_line() -> str:
    """A section for each verb: what it does, how it is called, each argument and option."""
    return "\n\n".join("\n\n".join(_section(name, verb)) for name, verb in verbs().items())


def _section(name: str, verb: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## {name}"
    yield " ".join((verb.description or "").split())
    yield f"```text\n{_usage(verb)}\n```"
    yield "\n".join(_rows(verb))


def _rows(verb: argparse.ArgumentParser) -> Iterator[str]:
    for action in verb._actions:
        text = (action.help or "").replace("%%", "%")
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        shown = ", ".join(_signatures(action)) if action.option_strings else _metavar(action)
        yield f"- `{shown}`: {_escaped(_sentence(text))}{_default(action, text)}"


def _usage(verb: argparse.ArgumentParser) -> str:
    made = argparse.HelpFormatter(verb.prog, width=100)
    made.add_usage(verb.usage, verb._actions, verb._mutually_exclusive_groups, prefix="")
    return made.format_help().rstrip()


def _signatures(action: argparse.Action) -> Iterator[str]:
    for flag in action.option_strings:
        yield flag if action.nargs == 0 else f"{flag} {_metavar(action)}"


def _metavar(action: argparse.Action) -> str:
    if action.choices is not None and action.metavar is None:
        return "|".join(map(str, action.choices))
    return str(action.metavar or action.dest.upper())


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _escaped(text: str) -> str:
    """Text that Markdown would take for markup."""
    return re.sub(r"([<*_])", r"\\\1", text)


def _default(action: argparse.Action, text: str) -> str:
    told = action.default in (None, False, [], argparse.SUPPRESS) or re.search(r"\bdefault\b", text)
    return "" if told else f" Default: `{action.default}`."

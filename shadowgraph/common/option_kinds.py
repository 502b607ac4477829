"""Kinds of options: how the text of an option is read, which values fit, and what a command line says of it.

Used by the rows of `shadowgraph.common.options`. Imports little: the command line and the pytest plugin start with it.
"""

from __future__ import annotations

import math
import os
import re
from typing import Any, NamedTuple, Protocol, TypeVar

from shadowgraph.common.errors import UsageError
from shadowgraph.common.suggestions import did_you_mean

_N = TypeVar("_N", int, float)


class Kind(Protocol):
    """Type of an option's value, with its bounds or choices."""

    @property
    def metavar(self) -> str:
        """What stands for a value in a help text; empty for choices and switches."""

    @property
    def values(self) -> str:
        """The values that fit, in words."""

    def parse(self, text: str, called: str) -> Any:
        """The value of a text; `called` is the caller's name for the option.

        Raises
        ------
        UsageError
            For a text that does not parse. Bounds are those of `check`.
        """

    def check(self, name: str, value: object) -> None:
        """Refuse a value that does not fit.

        Raises
        ------
        UsageError
        """

    def argument(self) -> dict[str, Any]:
        """Keywords of `argparse` that read a value from a command line of a shell."""


class Switch(NamedTuple):
    """True or False."""

    metavar: str = ""
    values: str = "on or off"

    def parse(self, text: str, called: str) -> bool:
        lowered = text.strip().lower()
        if lowered in {"1", "true", "yes", "on"}:
            return True
        if lowered in {"0", "false", "no", "off", ""}:
            return False
        raise UsageError(f"{called} must be 0 or 1, not {text!r}")

    def check(self, name: str, value: object) -> None:
        if not isinstance(value, bool):
            raise UsageError(f"{name} must be True or False, not {shown(value)}")

    def argument(self) -> dict[str, Any]:
        return {"action": "store_const", "const": True}


class Choice(NamedTuple):
    """One of a few words."""

    choices: tuple[str, ...]
    metavar: str = ""

    @property
    def values(self) -> str:
        return ", ".join(self.choices)

    def parse(self, text: str, called: str) -> str:
        return text

    def check(self, name: str, value: object) -> None:
        if not isinstance(value, str) or value not in self.choices:
            near = did_you_mean(value, self.choices) if isinstance(value, str) else ""
            raise UsageError(f"{name} must be one of {', '.join(self.choices)}, not {shown(value)}{near}")

    def argument(self) -> dict[str, Any]:
        return {"choices": self.choices}


class Words(NamedTuple):
    """One of a few words, or a list with commas whose parts have a pattern."""

    words: tuple[str, ...]
    form: str
    pattern: str
    metavar: str = "WHICH"

    @property
    def values(self) -> str:
        return f"{', '.join(self.words)} or {self.form}" if self.words else self.form

    def parse(self, text: str, called: str) -> str:
        return text

    def check(self, name: str, value: object) -> None:
        if not isinstance(value, str) or not (
            value in self.words or all(re.fullmatch(self.pattern, part) for part in value.split(","))
        ):
            raise UsageError(f"{name} must be {self.values}, not {shown(value)}")

    def argument(self) -> dict[str, Any]:
        return {}


class Bytes(NamedTuple):
    """A number of bytes."""

    at_least: int = 0
    metavar: str = "BYTES"

    @property
    def values(self) -> str:
        return f"bytes, at least {self.at_least:,}" if self.at_least else "bytes"

    def parse(self, text: str, called: str) -> int:
        try:
            return parse_bytes(text)
        except ValueError:
            raise UsageError(f"{called} must be a number of bytes such as 65536 or 64K, not {text!r}") from None

    def check(self, name: str, value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise UsageError(f"{name} must be a whole number of bytes, not {shown(value)}")
        if value < self.at_least and self.at_least:
            raise UsageError(f"{name} must be at least {self.at_least:,} bytes, not {value}")
        if value < 0:
            raise UsageError(f"{name} must not be negative, not {value}")

    def argument(self) -> dict[str, Any]:
        return {}


class Count(NamedTuple):
    """A whole number from 1."""

    metavar: str = "N"
    values: str = "a whole number from 1"

    def parse(self, text: str, called: str) -> int:
        return _number(int, text, called)

    def check(self, name: str, value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"{name} must be {self.values}, not {shown(value)}")

    def argument(self) -> dict[str, Any]:
        return {"type": int}


class Limit(NamedTuple):
    """A number above 0, whole or not."""

    number: type[int] | type[float]
    metavar: str = "N"
    values: str = "a number above 0"

    def parse(self, text: str, called: str) -> float:
        return _number(self.number, text, called)

    def check(self, name: str, value: object) -> None:
        numbers = (int,) if self.number is int else (int, float)
        if not isinstance(value, numbers) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise UsageError(f"{name} must be {self.values}, or None, not {shown(value)}")

    def argument(self) -> dict[str, Any]:
        return {"type": self.number}


class File(NamedTuple):
    """The path of a file."""

    metavar: str = "FILE"
    values: str = "the path of a file"

    def parse(self, text: str, called: str) -> str:
        return text

    def check(self, name: str, value: object) -> None:
        if not isinstance(value, (str, os.PathLike)):
            raise UsageError(f"{name} must be {self.values}, not {shown(value)}")

    def argument(self) -> dict[str, Any]:
        return {}


def parse_bytes(text: str) -> int:
    """``"65536"``, ``"64K"``, ``"1.5M"``, ``"2GiB"`` in bytes; ValueError otherwise."""
    cleaned = text.strip().lower().removesuffix("ib").removesuffix("b")
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
    if cleaned and cleaned[-1] in units:
        number = float(cleaned[:-1])
        if not math.isfinite(number):
            raise ValueError(f"{text!r} is no number of bytes")
        return int(number * units[cleaned[-1]])
    return int(cleaned)


def shown(value: object) -> str:
    """The `repr` of a value in one line of at most 80 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # the program's code
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _number(number: type[_N], text: str, called: str) -> _N:
    try:
        return number(text)
    except ValueError:
        raise UsageError(f"{called} must be a number, not {text!r}") from None

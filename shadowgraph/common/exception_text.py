"""Exceptions in words, those of the program included, whose classes may fail to be printed. Any thread."""

from __future__ import annotations


def message(error: BaseException) -> str:
    """An exception's message."""
    try:
        return str(error)
    except Exception:  # raised by the program's own exception class
        return "(cannot be printed)"


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, cut short."""
    return message(error).split("\n", 1)[0][:200]


def summary(error: BaseException) -> str:
    """An exception's type and the first line of its message."""
    return f"{type(error).__name__}: {message(error)}".split("\n", 1)[0]

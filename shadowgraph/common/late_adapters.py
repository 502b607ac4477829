"""Registers adapters for packages that a program imports late. A hook: the package sets it, since the session, which
calls it each time a debugger starts, must not import the adapters. Any thread; takes no lock."""

from __future__ import annotations

from collections.abc import Callable


def _none() -> None:
    return None


register: Callable[[], None] = _none  # set by the package

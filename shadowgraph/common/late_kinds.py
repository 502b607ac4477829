"""Registers the kinds of finding when one is first asked for. No lock: to register twice is harmless.

Set by the package when it is imported, called by `shadowgraph.model.kinds`: records of findings stand below the kinds,
and to import these with the package would slow the start of every command.
"""

from __future__ import annotations

from collections.abc import Callable


def _nothing() -> None:
    """What a process without the package's facade has."""


register: Callable[[], None] = _nothing

"""Which modules have been imported, of those that others import."""

from __future__ import annotations

import sys
from types import ModuleType


def imported(name: str) -> ModuleType | None:
    """A module whose import is complete, or None. Imports nothing.

    A module is in ``sys.modules`` from before its first line on. While it runs, `importlib` keeps ``_initializing`` set
    in the module's spec: a private field, but the one by which the import statement itself tells a module that must be
    waited for, and there is no public one. A module without a spec was made by hand and counts as imported.

    Parameters
    ----------
    name
        Full dotted name.
    """
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module

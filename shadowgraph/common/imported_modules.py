"""Look-up of optional modules that the program has already imported. Never imports a module itself."""

from __future__ import annotations

import sys
from types import ModuleType


def imported(name: str) -> ModuleType | None:
    """A module whose import is complete, or None. Imports nothing.

    A module is in ``sys.modules`` before its first line runs. While it runs, `importlib` keeps ``_initializing`` set in
    the module's spec: a private field, but the import statement itself uses it to recognise a module that it must wait
    for, and no public one exists. A module without a spec was made by hand and counts as imported.

    Parameters
    ----------
    name
        Full dotted name.
    """
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module

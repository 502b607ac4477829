"""The Sphinx extension of these docs: pages with parts made from the code, names that link, checks of what is said."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

from building import docstrings, options, parts, public, roles


def setup(app: Sphinx) -> dict[str, Any]:
    for module in (parts, roles, docstrings, options, public):
        module.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""What the docs are made with: parts of pages that come from the code (`tools/update_docs.py`), and a Sphinx extension,
which links names and checks what is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    from building import docstrings, options, public, roles

    for module in (roles, docstrings, options, public):
        module.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

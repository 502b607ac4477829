"""The role of single backticks in docstrings: a link where the name is documented, else code."""

from __future__ import annotations

from docutils import nodes
from docutils.nodes import Element, literal
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.roles import XRefRole


class NamedRole(XRefRole):
    """A reference to a Python object that need not exist: parameters and words of other trades are named like that."""

    def process_link(
        self, env: BuildEnvironment, refnode: Element, has_explicit_title: bool, title: str, target: str
    ) -> tuple[str, str]:
        refnode["refdomain"], refnode["reftype"], refnode["named"] = "py", "obj", True
        refnode["py:module"] = env.ref_context.get("py:module")
        refnode["py:class"] = env.ref_context.get("py:class")
        return title, target.removesuffix("()").removeprefix("~")


def _keep_as_code(app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: Element) -> nodes.Node | None:
    return contnode if node.get("named") else None


def setup(app: Sphinx) -> None:
    app.add_role("named", NamedRole(innernodeclass=literal))
    app.connect("missing-reference", _keep_as_code)

"""Sphinx: ``python -m sphinx -W -n -b html docs build/docs``. No network: nothing is fetched, no inventory, no font."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")  # before the first import of Triton: no GPU is asked for
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs"), str(ROOT / "tools")]

import shadowgraph  # noqa: E402  found through the path above

project = "shadowgraph"
copyright = "the shadowgraph authors, Apache-2.0"
release = version = shadowgraph.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "building",  # what is made from the code, and what is checked against it
]
exclude_patterns = ["building"]
root_doc = "index"
nitpicky = True
default_role = "named"  # of `building`: a link where the name is documented, else code

myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3  # as GitHub makes them: both read the same links

autodoc_typehints = "description"  # types stand once, in the signature, and are shown with the text
autodoc_typehints_description_target = "documented_params"
autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_ivar = True
_OTHERS = "torch|numpy|np|npt|msgspec|matplotlib|pathlib|os|collections|contextlib|types|typing"
_PLAIN = "None|bool|bytes|dict|float|frozenset|int|list|object|set|str|tuple|type|optional|ellipsis"
_SHORT = "Any|Callable|Iterable|Iterator|Literal|Mapping|Sequence|Figure|Path|PathLike|IO"
_ALIASES = "Breach|Values|Stack|PoolHandle|BufferNames|Scripts|Watched|LiveDebugger|(Alias|Byte|Row|Write)Map"
_INNER = "monitor|dumps\\.(live|naming)|graphs\\.dispatch\\.eager|views\\.node_list|dumps\\.schema"  # not public
nitpick_ignore_regex = [
    ("py:.*", rf"({_OTHERS})\..*"),  # their inventories are on the network
    ("py:.*", f"({_PLAIN}|{_SHORT}|{_ALIASES})"),
    ("py:.*", rf"shadowgraph\.({_INNER})\..*"),
]

html_theme = "furo"
html_title = f"shadowgraph {release}"
html_static_path = ["static"]
html_css_files = ["shadowgraph.css"]
html_copy_source = False
html_show_sphinx = False

"""Whether this process is watched: asked by plugins, which servers call in every process, wrapped or not.

So nothing else of shadowgraph is imported here. Any thread; no lock.
"""

from __future__ import annotations

import os
import sys

_RUN = "SHADOWGRAPH_WRAP"


def is_watched() -> bool:
    """Whether a debugger watches this process, or will: under `wrap`, or where the program has started one itself."""
    current = getattr(sys.modules.get("shadowgraph.session"), "current", None)  # missing during its import
    return bool(os.environ.get(_RUN)) or (current is not None and current() is not None)

"""sglang's plugin of ours: an entry point that sglang 0.5.11 and later calls in every process, wrapped or not.

Nothing else of this package is imported unless a run is on here: under `shadowgraph wrap`, or where the program has
started a debugger of its own.
"""

from __future__ import annotations

import os
import sys

_RUN = "SHADOWGRAPH_WRAP"


def plugin() -> None:
    """Hang the adapter into sglang if somebody watches this process; else return at once."""
    current = getattr(sys.modules.get("shadowgraph.session"), "current", None)  # missing while it is being imported
    if not os.environ.get(_RUN) and (current is None or current() is None):
        return
    from shadowgraph.integrations.sglang.adapter import attach

    attach()

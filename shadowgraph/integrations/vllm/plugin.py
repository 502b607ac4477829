"""Entry point of the shadowgraph plugin that vLLM calls in every process, maybe several times, wrapped or not.

No other module of this package is imported unless a debugger is in use: under `shadowgraph wrap`, or in a program that
has started a debugger itself.
"""

from __future__ import annotations

import os
import sys

_RUN = "SHADOWGRAPH_WRAP"


def plugin() -> None:
    """Attach the adapter to vLLM if a debugger watches, or will watch, this process; else return at once."""
    current = getattr(sys.modules.get("shadowgraph.session"), "current", None)  # missing during its import
    if not os.environ.get(_RUN) and (current is None or current() is None):
        return
    from shadowgraph.common.internal_errors import error_barrier_all

    with error_barrier_all("vllm adapter"):
        from shadowgraph.integrations.vllm.adapter import attach

        attach()

"""Entry point of the shadowgraph plugin that sglang 0.5.11 and later calls in every process, wrapped or not.

Of shadowgraph, only `watched` is imported besides, unless a debugger is in use: under `shadowgraph wrap`, or in a
program that has started a debugger itself.
"""

from __future__ import annotations

from shadowgraph.integrations.watched import is_watched


def plugin() -> None:
    """Attach the adapter to sglang if a debugger watches, or will watch, this process; else return at once."""
    if not is_watched():
        return
    from shadowgraph.common.internal_errors import error_barrier_all

    with error_barrier_all("sglang adapter"):
        from shadowgraph.integrations.sglang.adapter import attach

        attach()

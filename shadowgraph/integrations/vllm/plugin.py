"""Entry point of the shadowgraph plugin that vLLM calls in every process, maybe several times, wrapped or not.

Of shadowgraph, only `watched` is imported besides, unless a debugger is in use: under `shadowgraph wrap`, or in a
program that has started a debugger itself.
"""

from __future__ import annotations

from shadowgraph.integrations.watched import is_watched


def plugin() -> None:
    """Attach the adapter to vLLM if a debugger watches, or will watch, this process; else return at once."""
    if not is_watched():
        return
    from shadowgraph.common.internal_errors import error_barrier_all

    with error_barrier_all("vllm adapter"):
        from shadowgraph.integrations.vllm.adapter import attach

        attach()

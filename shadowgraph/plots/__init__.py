"""Pictures of memory (matplotlib), and maps to zoom into (Bokeh)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shadowgraph.plots.interactive import InteractiveMap, interactive_map

__all__ = ["InteractiveMap", "interactive_map"]


def __getattr__(name: str) -> Any:  # what draws is loaded by whoever draws
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shadowgraph.plots import interactive

    return getattr(interactive, name)

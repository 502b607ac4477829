"""Plots of memory (matplotlib, extra `plot`), and interactive maps (Bokeh, extra `notebook`).

Each kind has a data class in `shadowgraph.views`, made from a debugger or an open dump by ``of``, and a module here
that draws it: into a figure that the caller owns, or into a PNG, SVG or PDF file.

| data, in `shadowgraph.views` | drawing |
|---|---|
| `memory_map.MemoryMap` (of a debugger), `dumped_map.dumped_map` (of a dump) | `memory_map`, `save_memory_map` |
| `alias_map.AliasMap` | `alias_map`, `save_alias_map` |
| `write_map.WriteMap` | `write_map`, `save_write_map` |
| `byte_map.ByteMap` | `byte_map`, `save_byte_map` |
| `row_map.RowMap` | `row_map`, `save_row_map` |

`interactive_map` makes a page of either memory map. `memory_viz.memory_snapshot` and `save_memory_viz` give the ledger
as a memory snapshot in torch's format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shadowgraph.render.plots.interactive import InteractiveMap, interactive_map

__all__ = ["InteractiveMap", "interactive_map"]


def __getattr__(name: str) -> Any:  # a drawing module is imported on first use
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shadowgraph.render.plots import interactive

    return getattr(interactive, name)

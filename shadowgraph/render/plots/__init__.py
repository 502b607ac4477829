"""Pictures of memory (matplotlib, extra `plot`), and maps to zoom into (Bokeh, extra `notebook`).

Each kind is data, made from a debugger or an open dump by ``of``, and a module that draws it: a figure that the caller
owns, or a PNG, SVG or PDF file.

| data | drawing |
|---|---|
| `model.MemoryMap` (of a debugger), `dumped_map.dumped_map` (of a dump) | `memory_map.memory_map`, `save_memory_map` |
| `alias_model.AliasMap` | `alias_map.alias_map`, `save_alias_map` |
| `write_model.WriteMap` | `write_map.write_map`, `save_write_map` |
| `byte_model.ByteMap` | `byte_map.byte_map`, `save_byte_map` |
| `row_model.RowMap` | `row_map.row_map`, `save_row_map` |

`interactive_map` makes a page of either memory map. `memory_viz.memory_snapshot` and `save_memory_viz` give the ledger
as a memory snapshot of torch's format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shadowgraph.render.plots.interactive import InteractiveMap, interactive_map

__all__ = ["InteractiveMap", "interactive_map"]


def __getattr__(name: str) -> Any:  # what draws is loaded by whoever draws
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shadowgraph.render.plots import interactive

    return getattr(interactive, name)

"""Pictures of memory (matplotlib, extra `plot`).

Each kind is data, made from a debugger or an open dump by ``of``, and a module that draws it: a figure that the caller
owns, or a PNG, SVG or PDF file.

| data | drawing |
|---|---|
| `model.MemoryMap` (of a debugger), `dumped_map.dumped_map` (of a dump) | `memory_map.memory_map`, `save_memory_map` |
| `alias_model.AliasMap` | `alias_map.alias_map`, `save_alias_map` |
| `write_model.WriteMap` | `write_map.write_map`, `save_write_map` |
| `byte_model.ByteMap` | `byte_map.byte_map`, `save_byte_map` |
| `row_model.RowMap` | `row_map.row_map`, `save_row_map` |

`memory_viz.memory_snapshot` and `save_memory_viz` give the ledger as a memory snapshot of torch's format.
"""

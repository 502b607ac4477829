"""Buffers that took over the place or the name of another one, under their names; for kinds that tell of them.

Called by the finding pipeline, in the thread of the event that reports.
"""

from __future__ import annotations

from shadowgraph.checks.base import Context
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Successor


def successor_of(buffer: Buffer, context: Context) -> Successor:
    """A buffer of the ledger under its name."""
    name, _ = context.names.name_of(buffer)
    return Successor(
        name, buffer.start, buffer.nbytes, buffer.dtype, buffer.shape, serial=buffer.serial, allocated=buffer.stack
    )

"""Buffers that took over the place or the name of another one, under their names; for kinds that tell of them.

Called by the finding pipeline, in the thread of the event that reports.
"""

from __future__ import annotations

from shadowgraph.checks.base import Context
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Successor
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView


def successor_of(buffer: Buffer, context: Context) -> Successor:
    """A buffer of the ledger under its name."""
    name, _ = context.names.name_of(buffer)
    return Successor(
        name, buffer.start, buffer.nbytes, buffer.dtype, buffer.shape, serial=buffer.serial, allocated=buffer.stack
    )


def memory_at(where: ByteRange, view: TensorView | None, context: Context) -> Successor:
    """Memory of the device under the name of its buffer, else of an owner; its address where neither is known.

    Parameters
    ----------
    view
        The memory as the program uses it, where that is known.
    """
    known = context.ledger.owner(where.start, where.stop)
    if known is not None:
        return successor_of(known, context)
    dtype, shape = (view.dtype, view.shape) if view is not None else ("uint8", (where.nbytes,))
    owner = min(context.names.owners_of(where), key=lambda each: len(each.path), default=None)
    name = owner.path if owner is not None else f"memory at {where.start:#x}"
    return Successor(name, where.start, where.nbytes, dtype, shape)

"""Buffers that stand for tenants of pools in findings. Used by the check, under the debugger's lock."""

from __future__ import annotations

from shadowgraph.checks.pool_clobber.tenants import Tenant
from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.launches import RESULT
from shadowgraph.model.stacks import Stack


class TenantBuffers:
    """The buffer of each tenant that a finding names.

    On a device the ledger has one entry for a block: there a buffer is made, with the serial of that entry, and so the
    names of its owners, for the tenant that the entry stands for. The others are taken for freed.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._made: dict[Tenant, Buffer] = {}

    def of(self, tenant: Tenant) -> Buffer:
        """The buffer of a tenant, the same one each time."""
        made = tenant.made
        if made.buffer is not None:
            return made.buffer
        known = self._made.get(tenant)
        if known is None:
            serial = self._serial_of_block(tenant)
            known = self._made[tenant] = Buffer(
                serial=serial if serial is not None else self._ledger.next_serial(),
                start=made.where.start,
                nbytes=made.where.nbytes,
                role=Role.POOL,
                dtype=made.dtype,
                shape=made.shape,
                itemsize=made.itemsize,
                stack=_stack_of(tenant),
                device=_device_of(tenant),
                graph=tenant.graph.serial,
                freed_at=None if serial is not None else self._ledger.next_serial(),
            )
        return known

    def drop(self, serial: int) -> None:
        """A graph is gone."""
        self._made = {each: made for each, made in self._made.items() if each.graph.serial != serial}

    def _serial_of_block(self, tenant: Tenant) -> int | None:
        """Serial of the ledger's entry for a block, if that stands for the tenant."""
        entry = self._ledger.at(tenant.where.start)
        if entry is None or not tenant.final:
            return None
        block = entry.role, entry.start, entry.graph
        return entry.serial if block == (Role.POOL, tenant.where.start, tenant.graph.serial) else None

    def fate_of(self, tenant: Tenant) -> str:
        """Whether the program holds the tensor: ``alive``, ``freed`` or ``unknown``."""
        buffer = tenant.made.buffer
        return "unknown" if buffer is None else "alive" if buffer.alive else "freed"


def _stack_of(tenant: Tenant) -> Stack:
    """Where the tensor was allocated: by the operator that returned it, if a node was made of that."""
    for node, pointer in tenant.graph.pointing_into(tenant.where):
        made = pointer.argument.startswith(RESULT) and pointer.view.storage_address == tenant.where.start
        if made and node.index == tenant.made.before:
            return node.launch.stack
    return ()


def _device_of(tenant: Tenant) -> str:
    found = tenant.graph.pointing_into(tenant.where)
    return found[0][1].view.device if found else "cpu"

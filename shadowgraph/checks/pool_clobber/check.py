"""SG105: memory of a graph pool is read as one tensor's after another tensor of the pool was written there.

Tensors of a pool have the same bytes in turn, within a capture and from one capture to the next. That is no error as
long as each is read before another one is written. At a read, three facts are needed: which tensor the reader takes the
bytes for, which launch wrote them last, and that the two do not belong together although the tensor's own values were
there before. A read is that of a captured node which takes the bytes as it finds them, of an eager operator or kernel,
or of the host.

Which tensor a captured pointer belongs to is decided by its place among the allocations of its capture (`tenants`);
which launch wrote bytes last, by the order of replays and eager writes (`history`) and of the nodes in each graph
(`accesses`). Addresses that were used again decide nothing: in layout ``isolate``, tensors of one capture that torch
would have given the same block are told apart by the order of allocations and frees.

Costs at a replay: a note of its order, and a look at the pool memory that the graph takes from others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf

import msgspec

from shadowgraph.checks.base import Check, Checkpoint, Context, Detection, PoolAccess, bytes_in, host_reader
from shadowgraph.checks.pool_clobber import CODE
from shadowgraph.checks.pool_clobber.accesses import Change, Kernel, Use, changes_of, only_loaded, uses_of
from shadowgraph.checks.pool_clobber.buffers import TenantBuffers
from shadowgraph.checks.pool_clobber.details import Clobbered
from shadowgraph.checks.pool_clobber.facts import Access
from shadowgraph.checks.pool_clobber.history import Clobber, History, Replayed, Search, Written
from shadowgraph.checks.pool_clobber.tenants import Tenant, Tenants, matching
from shadowgraph.checks.pool_clobber.unseen_nodes import leads_unseen
from shadowgraph.model.findings import Reader
from shadowgraph.model.graphs import Graph, Node
from shadowgraph.model.launches import Launch, LaunchKind
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.stacks import Stack, current_stack
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.pool_watch import Sight, borrowers, watch
from shadowgraph.tracking.writes import Write, extent, write_of

_EXPOSING = {"numpy", "__array__", "__dlpack__"}  # after them the host may write unseen
_EXPOSED = 256


class PoolClobbers(Check):
    """Looks, at each read of pool memory that tensors share, for the launch that wrote it last."""

    needs_every_write = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._tenants, self._history = Tenants(), History()
        self._buffers = TenantBuffers(context.ledger)
        self._kernels: dict[tuple[int, int], Kernel] = {}  # captured, by graph and node
        self._learnt: set[int] = set()  # graphs of which a replay has just shown what a kernel does
        self._running: tuple[Replayed, Replayed | None] | None = None  # with the replay of its graph before
        self._changes: dict[tuple[int, Tenant], tuple[Change, ...]] = {}
        self._uses: dict[int, list[tuple[Tenant, tuple[Use, ...]]]] = {}  # by graph
        self._filled: dict[int, set[Tenant]] = {}  # by graph: its own that eager code wrote
        self._exposed: deque[ByteRange] = deque(maxlen=_EXPOSED)
        watch.begin()
        borrowers.replayed = 0

    # -- events -------------------------------------------------------------------------------------------------

    def captured(self, graph: Graph) -> None:
        graphs = self.context.graphs
        for serial in [each for each in self._tenants.entered() if each not in graphs]:
            self._drop(serial)
        watch.add(graph.serial, *self._tenants.enter(graph))
        watch.arrived(graph.serial)
        if not self.context.engine.asynchronous:
            borrowers.replayed = 0
        for written in list(self._history.written(0, inf)) if self.context.engine.asynchronous else ():
            self._note_touched(written.parts)  # eager code may have been faster than this

    def _drop(self, serial: int) -> None:
        self._tenants.drop(serial)
        watch.drop(serial)
        borrowers.forget(serial)
        self._history.drop(serial)
        self._buffers.drop(serial)
        self._kernels = {key: known for key, known in self._kernels.items() if key[0] != serial}
        self._changes = {k: v for k, v in self._changes.items() if serial not in (k[0], k[1].graph.serial)}
        self._filled.pop(serial, None)
        self._uses.clear()

    @property
    def wants_known_writes(self) -> bool:
        return False

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        graph = checkpoint.graph
        assert graph is not None
        uses = self._uses_in(graph)
        if uses:
            now = Replayed(graph, checkpoint.order, checkpoint.replay or 0)
            self._judge_uses(uses, now, self._history.latest, checkpoint)
        before = self._history.begins(graph, checkpoint.order)
        borrowers.replayed = graph.serial
        self._running = Replayed(graph, checkpoint.order, graph.replays), before

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        if graph is not None:
            if write.stores is not None and write.node is not None:
                self._learn(graph, write.node, Kernel(write.ranges, write.stores.loaded))
            return
        if write.stores is not None and watch.on:
            self._judge_kernel(write)
        if self._history.is_known(write.launch, write.ranges):
            return
        if self._note_touched(write.ranges) or any(map(watch.expects, write.ranges)):
            self._history.wrote(Written(next(self.context.clock), write.launch, write.ranges))

    def _learn(self, graph: Graph, node: int, seen: Kernel) -> None:
        """A captured kernel was seen to store and to load; loads are seen once memory is watched."""
        known = self._kernels.get((graph.serial, node))
        if known is None or (seen.loads and not known.loads):
            self._kernels[graph.serial, node] = seen
            self._learnt.add(graph.serial)

    def _note_touched(self, ranges: RangeSet) -> bool:
        """Note the tenants that a write of eager code may have filled; returns whether there are any."""
        touched = self._touched(ranges)
        held = [each for each in touched if each.made.buffer is not None and each.made.buffer.alive]
        for tenant in held or touched[-1:]:
            self._fill(tenant)
        return bool(touched)

    def _touched(self, ranges: RangeSet) -> list[Tenant]:
        """Tenants of which some bytes are in the ranges, oldest first."""
        if not ranges:
            return []
        parts = list(ranges)
        found = self._tenants.at(ByteRange(parts[0].start, parts[-1].stop))
        return [each for each in found if ranges.overlaps(each.where)]

    def pool_written(self, written: PoolAccess) -> None:
        tenant = self._tenant_of(written)
        parts, gaps = extent(written.view)
        launch = Launch(LaunchKind.ATEN, written.how, (), current_stack())
        sure = not gaps and tenant is not None
        self._history.wrote(Written(next(self.context.clock), launch, parts, tenant, sure))
        if tenant is not None:
            self._fill(tenant)

    def _fill(self, tenant: Tenant) -> None:
        """Eager code wrote a tenant: from here on it has contents of its own that its graph may take as they are."""
        filled = self._filled.setdefault(tenant.graph.serial, set())
        if tenant not in filled:
            filled.add(tenant)
            if self._tenants.shares(tenant):
                watch.add(tenant.graph.serial, tenant.where)
                self._uses.pop(tenant.graph.serial, None)

    def checkpoint_ends(self, checkpoint: Checkpoint) -> None:
        """Judge a replay once more that has shown which of its kernels only read."""
        if not self._learnt or checkpoint.at != "replay_end" or checkpoint.graph is None:
            return
        graph = checkpoint.graph
        if graph.serial not in self._learnt:
            return
        self._learnt.discard(graph.serial)
        self._uses.pop(graph.serial, None)
        self._changes = {key: known for key, known in self._changes.items() if key[0] != graph.serial}
        if self._running is not None and self._running[0].graph is graph:
            now, previous = self._running
            before = self._history.before(now, previous)
            self._judge_uses(self._uses_in(graph), now, lambda: iter(before), checkpoint)

    def host_read(self, view: TensorView, how: str, stack: Stack, checkpoint: Checkpoint) -> None:
        if how in _EXPOSING and self._tenants.at(view.hull):
            self._exposed.append(view.hull)

    def invalidate_writers(self) -> None:
        self._history.forget(self.context.replays())
        self._running, borrowers.replayed = None, 0
        self._filled.clear()
        self._uses.clear()

    def pool_read(self, read: PoolAccess, checkpoint: Checkpoint) -> None:
        tenant = self._tenant_of(read)
        if tenant is not None:
            self._judge(tenant, RangeSet.of(self._parts(read.view, tenant)), read.how, checkpoint)

    # -- whose memory is read -----------------------------------------------------------------------------------

    def _tenant_of(self, access: PoolAccess) -> Tenant | None:
        """The tenant that eager code accesses; None where that is not known for certain."""
        view, sight, storage = access.view, access.sight, access.storage
        known = [each for each in self._tenants.at(view.hull) if each.where.contains(storage[0])]
        if sight is not None:
            known = [each for each in known if each.made.serial <= sight.serial]
            return _at_birth(known, storage, sight) if known and sight.born else matching(known, storage)
        if self.context.engine.asynchronous:  # its owner lives: no later tenant has got the block
            newest = known[-1] if known else None
            fits = newest is not None and (newest.where.start, newest.where.nbytes) == storage
            return newest if fits else None
        owner = self.context.ledger.owner(view.start, view.stop)
        return next((each for each in known if each.made.buffer is owner), None)

    def _parts(self, view: TensorView, tenant: Tenant) -> Iterator[ByteRange]:
        return filter(None, (part.intersect(tenant.where) for part in extent(view)[0]))

    def _judge_kernel(self, write: Write) -> None:
        """A kernel ran in eager code: judge what it has loaded of a tensor that it was given."""
        assert write.stores is not None
        seen = Kernel(write.ranges, write.stores.loaded)
        for pointer in write.launch.pointers if seen.loads else ():
            view, parts = pointer.view, only_loaded(seen, pointer.view.hull)
            if parts and watch.covers(view.address):
                storage = view.storage_address, view.storage_nbytes
                tenant = self._tenant_of(PoolAccess(view, write.launch.name, None, storage))
                if tenant is not None and not borrowers.any_in(tenant.where):  # it may have been given one of these
                    self._judge(tenant, parts, write.launch.name, Checkpoint("launch"), write.launch.stack)

    # -- what a graph takes as it finds it ----------------------------------------------------------------------

    def _uses_in(self, graph: Graph) -> list[tuple[Tenant, tuple[Use, ...]]]:
        known = self._uses.get(graph.serial)
        if known is None:
            tenants = {*self._tenants.given(graph), *self._filled.get(graph.serial, ())}
            found = [(tenant, self._uses_of(graph, tenant)) for tenant in sorted(tenants, key=lambda each: each.age)]
            known = self._uses[graph.serial] = [(tenant, uses) for tenant, uses in found if uses]
        return known

    def _uses_of(self, graph: Graph, tenant: Tenant) -> tuple[Use, ...]:
        changes = self._changes_by(graph, tenant)
        return uses_of(graph, tenant, self._tenants, self._kernels, changes)

    def _changes_by(self, graph: Graph, tenant: Tenant) -> tuple[Change, ...]:
        key = graph.serial, tenant
        known = self._changes.get(key)
        if known is None:
            known = self._changes[key] = changes_of(graph, tenant, self._tenants, self._kernels)
        return known

    # -- judgement ----------------------------------------------------------------------------------------------

    def _judge_uses(
        self,
        uses: list[tuple[Tenant, tuple[Use, ...]]],
        now: Replayed,
        replays: Callable[[], Iterable[Replayed]],
        checkpoint: Checkpoint,
    ) -> None:
        for tenant, of_tenant in uses:
            for use in of_tenant:
                clobber = self._search(tenant, use.parts, replays(), use.before, now)
                if clobber is not None and self._is_certain(tenant, clobber, now.graph):
                    self._report(tenant, clobber, _by_node(use.node, now), None, checkpoint)
                    break

    def _judge(
        self, tenant: Tenant, parts: RangeSet, how: str, checkpoint: Checkpoint, stack: Stack | None = None
    ) -> None:
        clobber = self._search(tenant, parts, self._history.latest())
        if clobber is not None and self._is_certain(tenant, clobber, None):
            reader = host_reader(how, stack if stack is not None else current_stack())
            read = Access(how, file=reader.file, line=reader.line)
            self._report(tenant, clobber, read, reader, checkpoint)

    def _search(
        self,
        tenant: Tenant,
        parts: RangeSet,
        replays: Iterable[Replayed],
        before: Iterable[Change] = (),
        now: Replayed | None = None,
    ) -> Clobber | None:
        """The write that stands in the place of a tenant's own values, if that is so."""
        search, until = Search(tenant, parts), inf
        if now is not None:
            search.take_changes(before, now)
        for replayed in replays:
            if search.over:
                break
            search.take_writes(self._history.written(replayed.order, until))
            search.take_changes(self._changes_by(replayed.graph, tenant), replayed)
            until = replayed.order
        search.take_writes(self._history.written(0, until))
        return search.found if search.found is not None and search.found.made is not None else None

    def _is_certain(self, tenant: Tenant, clobber: Clobber, coming: Graph | None) -> bool:
        """Whether nothing is missing that would make the read right."""
        graphs, where, order = self.context.graphs, tenant.where, clobber.order
        if isinstance(clobber.made, Written) and clobber.made.tenant is None and not self._is_the_only_one(tenant):
            return False
        if order < self._history.floor or any(each.serial not in graphs for each in (tenant.graph, clobber.by.graph)):
            return False
        for graph in list(graphs.values()):
            if not graph.touches(where) and graph is not tenant.graph:
                continue
            if not self._history.knows(graph, graph is coming):
                return False
        if self.context.engine.asynchronous and not self.context.ledger.overlapping(where.start, where.stop):
            return False  # eager writes to this pool are not seen
        later = [each.graph for each in self._history.latest() if each.order >= order]
        return not any(leads_unseen(graph, where) for graph in {*later, tenant.graph})

    def _is_the_only_one(self, tenant: Tenant) -> bool:
        """Whether what eager code wrote there can have been for no other tensor: of its own capture none came after it,
        and no other graph has any."""
        return tenant.final and all(each.graph is tenant.graph for each in self._tenants.at(tenant.where))

    def _report(
        self, tenant: Tenant, clobber: Clobber, read: Access, reader: Reader | None, checkpoint: Checkpoint
    ) -> None:
        buffer, other = self._buffers.of(tenant), self._buffers.of(clobber.by)
        exposed = any(tenant.where.overlaps(part) for part in self._exposed)
        apart = isinstance(clobber.write, Change) and clobber.write.apart
        assert clobber.made is not None
        draft = Detection(
            code=CODE,
            checkpoint=checkpoint,
            buffer=buffer,
            **bytes_in(clobber.parts),
            culprits=(_culprit(clobber),),
            phase=Phase.EAGER,
            reader=reader,
            confidence="high" if clobber.write.sure and not (apart or exposed) else "medium",
            key=f"eager {other.serial}",
            facts=Clobbered(
                owner=tenant.graph.name,
                fate=self._buffers.fate_of(tenant),
                by=other,
                by_owner=clobber.by.graph.name,
                read=read,
                made=_made_by(clobber.made),
                apart=apart,
            ),
        )
        if clobber.replayed is not None:
            graph, _, replay = clobber.replayed
            draft = replace(draft, phase=Phase.REPLAY, graph=graph, replay=replay, key=f"{graph.serial} {other.serial}")
        self.context.report(draft)


def _culprit(clobber: Clobber) -> Write:
    written = clobber.write
    if isinstance(written, Change):
        write = write_of(written.node.launch, None, written.node.index)
    else:
        write = Write(written.launch, written.parts)
    return msgspec.structs.replace(write, opaque=not written.sure, hull=False)


def _made_by(made: tuple[Change, Replayed] | Written) -> Access:
    return _by_launch(made.launch) if isinstance(made, Written) else _by_node(made[0].node, made[1])


def _by_node(node: Node, replayed: Replayed) -> Access:
    return _by_launch(node.launch, replayed.graph.name, replayed.replay, node.index)


def _by_launch(launch: Launch, graph: str | None = None, replay: int | None = None, node: int | None = None) -> Access:
    frame = launch.stack[0] if launch.stack else None
    return Access(launch.name, graph, replay, node, frame.file if frame else None, frame.line if frame else None)


def _at_birth(known: Sequence[Tenant], storage: tuple[int, int], sight: Sight) -> Tenant | None:
    """The tenant whose memory a storage has that was seen as it was made; None where that is not certain.

    That is the newest tenant if it lives; else the last one of the graph that replayed last. On a device it is not
    known whether the newest lives.
    """
    newest = known[-1]
    ended = newest.made.buffer is None or (newest.made.buffer.freed_at or inf) <= sight.serial
    replayed = [each for each in known if each.graph.serial == sight.replayed]
    if not ended or (replayed and replayed[-1].graph is newest.graph):
        return newest
    if newest.made.buffer is None:
        return newest if not replayed else None
    return replayed[-1] if replayed else matching(known, storage)

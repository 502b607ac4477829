"""What eager operators read and return, for checks that must know more than the writes to tracked memory.

Copies are always noted: which memory was filled from which. Reads of given ranges, and results of given dtypes, are
noted while a check wants them. `EagerMode` calls `note` in the thread of each operator, without a lock; checks set what
is wanted, and take the notes, under the debugger's lock. Notes are appended to deques, which is atomic.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from shadowgraph.graphs.dispatch.schemas import puts, schema_of
from shadowgraph.graphs.dispatch.tensors import ORDINARY, is_lazy_copy, is_plain, named_tensors, tensors_in, view_facts
from shadowgraph.model.launches import RESULT, Access, Launch, LaunchKind, Pointer
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import current_stack

LARGEST = 1 << 20  # bytes of a copy that is noted
_COPIES = 4096  # copies remembered
_JOINED = 16  # tensors that one operator joins
_RESULTS = 1024  # results remembered

order = itertools.count(1)  # of notes, and of what their readers compare with them
_aten = torch.ops.aten
_JOINING = {id(_aten.cat.default), id(_aten.stack.default)}
_COPYING: tuple[Any, ...] = (_aten.clone.default, _aten.copy_.default, _aten._to_copy.default)
copying = {id(operator): operator for operator in (*_COPYING, _aten.cat.default, _aten.stack.default)}  # kept: ids
_NUMBERS = {  # dtypes whose values can be compared after a conversion
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.float32, torch.float64,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Copied:
    """Memory that was filled, element by element, from other memory of the same device; neither is kept alive.

    Attributes
    ----------
    source, target
        The first bytes of both, and the storages that they lie in.
    count
        Elements of either; both are contiguous.
    source_dtype, target_dtype
        Of the elements.
    shape
        Of the source.
    """

    source: int
    target: int
    source_storage: weakref.ref[torch.UntypedStorage]
    target_storage: weakref.ref[torch.UntypedStorage]
    count: int
    source_dtype: torch.dtype
    target_dtype: torch.dtype
    shape: torch.Size

    @property
    def ranges(self) -> tuple[ByteRange, ByteRange]:
        """The bytes of source and target."""
        read, filled = self.count * self.source_dtype.itemsize, self.count * self.target_dtype.itemsize
        return ByteRange(self.source, self.source + read), ByteRange(self.target, self.target + filled)

    @property
    def alive(self) -> bool:
        """Whether both storages live, and have these bytes."""
        pairs = zip(self.ranges, (self.source_storage, self.target_storage), strict=True)
        return all(_holds(reference(), where) for where, reference in pairs)


def _holds(storage: torch.UntypedStorage | None, where: ByteRange) -> bool:
    if storage is None:
        return False
    start = storage.data_ptr()
    return start <= where.start and where.stop <= start + storage.nbytes()


class Interest:
    """What one check wants to be noted, and the notes.

    Attributes
    ----------
    ranges, dtypes
        Memory whose reads are noted; dtypes of results that are. Set by `want`.
    reads
        Ranges of those wanted that were read.
    results
        Launches that returned, or filled, tensors of the wanted dtypes, each with its place in `order`.
    used
        Addresses of tensors that operators have read since they were made, while results are noted.
    """

    def __init__(self, notes: OperandNotes) -> None:
        self._notes = notes
        self.ranges: tuple[ByteRange, ...] = ()
        self.dtypes: frozenset[str] = frozenset()
        self.reads: deque[ByteRange] = deque()
        self.results: deque[tuple[int, Launch]] = deque(maxlen=_RESULTS)
        self.used: set[int] = set()

    def want(self, ranges: Iterable[ByteRange], dtypes: Iterable[str] = ()) -> None:
        """Note these from here on, and nothing else."""
        self.ranges, self.dtypes = tuple(ranges), frozenset(dtypes)
        if not self.ranges:
            self.reads.clear()
        if not self.dtypes:
            self.used = set()
        self._notes.settle()


class OperandNotes:
    """Notes of one debugger.

    Parameters
    ----------
    device
        The device whose memory counts, such as ``"cuda:0"``.

    Attributes
    ----------
    closely
        Whether every operator is to be noted.
    copies, learns
        The latest copies, and whether more are noted.
    """

    learns = True

    def __init__(self, device: str) -> None:
        place = torch.device(device)
        self._type, self._index, self._place = place.type, -1 if place.index is None else place.index, str(place)
        self.closely = False
        self.copies: deque[Copied] = deque(maxlen=_COPIES)
        self._interests: list[Interest] = []
        self._reading: tuple[Interest, ...] = ()
        self._taking: tuple[Interest, ...] = ()

    def interest(self) -> Interest:
        """A new interest, in nothing yet."""
        self._interests.append(Interest(self))
        return self._interests[-1]

    def settle(self) -> None:
        """An interest has changed."""
        self._reading = tuple(each for each in self._interests if each.ranges)
        self._taking = tuple(each for each in self._interests if each.dtypes)
        self.closely = bool(self._reading or self._taking)

    def note(self, func: Any, args: Any, kwargs: Any, results: Any) -> None:
        """An operator ran."""
        if self.learns and id(func) in copying:
            self._note_copies(func, args, kwargs, results)
        if not self.closely or func.is_view:
            return
        schema = schema_of(func, args)
        if not schema.pure_view:
            for name, tensor in named_tensors(schema.names, args, kwargs):
                access = schema.access(name)
                if access is Access.READ or (access is Access.READ_WRITE and not puts(schema.name)):
                    self._note_read(tensor)
        if self._taking and not schema.allocates:
            self._note_results(schema.name, results)

    def _note_copies(self, func: Any, args: Any, kwargs: Any, results: Any) -> None:
        if id(func) not in _JOINING:
            source, target = (args[1], args[0]) if len(args) > 1 else (args[0], results)
            if self._is_dense(source) and self._is_dense(target) and source.shape == target.shape:
                self._note_copy(source, target, target.data_ptr())
        elif (args[1] if len(args) > 1 else kwargs.get("dim", 0)) == 0 and self._is_dense(results):
            at = results.data_ptr()
            for source in args[0] if len(args[0]) <= _JOINED else ():
                if self._is_dense(source):
                    self._note_copy(source, results, at)
                at += source.numel() * results.dtype.itemsize

    def _note_copy(self, source: torch.Tensor, target: torch.Tensor, at: int) -> None:
        kinds = source.dtype, target.dtype
        if kinds[0] is kinds[1] or _NUMBERS.issuperset(kinds):
            storages = weakref.ref(source.untyped_storage()), weakref.ref(target.untyped_storage())
            self.copies.append(Copied(source.data_ptr(), at, *storages, source.numel(), *kinds, source.shape))

    def _is_dense(self, tensor: Any) -> bool:
        """Whether a tensor is a contiguous one of this device, of a size that is noted."""
        return (
            type(tensor) in ORDINARY
            and 0 < tensor.nbytes <= LARGEST
            and self._is_here(tensor)
            and not is_lazy_copy(tensor)
            and tensor.is_contiguous()
        )

    def _note_read(self, tensor: torch.Tensor) -> None:
        if self._is_here(tensor):
            where = view_facts(tensor, self._place).hull
            for each in self._reading:
                each.reads.extend(p for p in each.ranges if p.overlaps(where) and p not in each.reads)
            for each in self._taking:
                each.used.add(where.start)

    def _note_results(self, operator: str, results: Any) -> None:
        views = [view_facts(tensor, self._place) for tensor in tensors_in(results) if self._is_here(tensor)]
        for each in self._taking:
            each.used.difference_update(view.start for view in views)
            pointers = tuple(Pointer(RESULT, view, Access.WRITE) for view in views if view.dtype in each.dtypes)
            if pointers:
                each.results.append((next(order), Launch(LaunchKind.ATEN, operator, pointers, current_stack())))

    def _is_here(self, tensor: Any) -> bool:
        return (
            isinstance(tensor, torch.Tensor)
            and is_plain(tensor, self._type)
            and tensor.get_device() == self._index
            and tensor.numel() > 0
        )


current: OperandNotes | None = None  # of the debugger that started last


def begin(device: str) -> OperandNotes:
    """The notes of a debugger that starts."""
    global current
    current = OperandNotes(device)
    return current

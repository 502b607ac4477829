"""The bytes that a tensor covers, and the index expression that makes one tensor out of another: never holds a
tensor."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING

import msgspec

from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.saved_fields import Text

if TYPE_CHECKING:
    import torch

_GEOMETRIES = 4096  # shapes whose extent is cached


class TensorView(msgspec.Struct, frozen=True, gc=False):
    """The bytes that a tensor covered at one moment.

    Holds numbers and text only, so that it keeps no memory alive; the facts say nothing about whether
    the tensor still exists.

    Attributes
    ----------
    address : int
        Address of the first element (`data_ptr()`); 0 for an empty tensor.
    storage_address, storage_nbytes : int
        First byte and size of the storage behind the tensor.
    shape, stride : tuple of int
        Per dimension; strides count elements.
    dtype : str
        Without the `torch.` in front: `"int32"`.
    itemsize : int
        Bytes of one element.
    device : str
        Such as `"cuda:0"`. Addresses are compared within one device only.
    """

    address: int
    storage_address: int
    storage_nbytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Text
    itemsize: int
    device: Text

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorView:
        """Read the facts of a tensor, without synchronisation and without running a subclass's code.

        Raises
        ------
        ValueError
            The tensor has no strided memory of its own: meta, fake, sparse, nested, functorch wrappers, wrapper
            subclasses, storages resized to zero, lazy copies (copy on write).
        """
        import torch

        plain, c_module = torch.Tensor, vars(torch._C)
        with torch._C.DisableTorchFunction():
            try:
                storage = plain.untyped_storage(tensor)
                # Reading a lazy copy's pointer would materialise it: an allocation that the program did not make.
                if storage.device.type == "meta" or c_module["_is_cow_tensor"](tensor):
                    raise ValueError("the tensor has no memory yet")
                base = storage.data_ptr()
                if not base and torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python):
                    raise ValueError("the tensor wraps others")
                shape = tuple(plain.size(tensor))
                if not base and 0 not in shape:
                    raise ValueError("the tensor's storage is gone")
                dtype: torch.dtype = vars(c_module["TensorBase"])["dtype"].__get__(tensor)
                return cls(
                    address=plain.data_ptr(tensor),
                    storage_address=base,
                    storage_nbytes=storage.nbytes(),
                    shape=shape,
                    stride=tuple(plain.stride(tensor)),
                    dtype=str(dtype).removeprefix("torch."),
                    itemsize=dtype.itemsize,
                    device=str(storage.device),
                )
            except RuntimeError as error:
                raise ValueError("the tensor has no strided memory of its own") from error

    @property
    def start(self) -> int:
        """Address of the first byte."""
        return self.address

    @property
    def stop(self) -> int:
        """Address after the last byte that any index can reach; equal to `start` when there are no elements."""
        return self.address + _reach(self.shape, self.stride, self.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without the gaps between them."""
        return math.prod(self.shape) * self.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether the elements are in row-major order without gaps."""
        return _dense(self.shape, self.stride)

    @property
    def row_nbytes(self) -> int | None:
        """Declared bytes of one row, or None: fewer than two dimensions, or rows with gaps inside."""
        if len(self.shape) < 2 or not _dense(self.shape[1:], self.stride[1:]):
            return None
        return math.prod(self.shape[1:]) * self.itemsize

    @property
    def row_stride_nbytes(self) -> int | None:
        """Bytes from one row to the next, or None with fewer than two dimensions; may exceed `row_nbytes`."""
        return self.stride[0] * self.itemsize if len(self.shape) >= 2 else None

    def touches(self, start: int, stop: int) -> bool:
        """Whether any byte of any element lies in `[start, stop)`; gaps between rows do not count."""
        return start < stop and self.nbytes > 0 and _hits(self.address, _steps(self), self.itemsize, start, stop)

    @property
    def hull(self) -> ByteRange:
        """From the first byte of any element to the last, gaps between elements included."""
        return ByteRange(self.start, self.stop)

    def ranges(self, limit: int) -> list[ByteRange] | None:
        """The bytes of all elements without gaps, one range for each contiguous run.

        Returns
        -------
        list of ByteRange or None
            In row-major order; they overlap where the elements do. None where there are more than `limit` runs.
        """
        if not self.nbytes:
            return []
        if self.contiguous:
            return [self.hull]
        steps, width = _steps(self), self.itemsize
        while steps and steps[-1][0] <= width:
            stride, size = steps.pop()
            width += (size - 1) * stride
        if math.prod(size for _, size in steps) > limit:
            return None
        return [ByteRange(start, start + width) for start in _run_starts(self.address, steps)]


def overlaps(one: TensorView, other: TensorView) -> bool:
    """Whether two views share a byte.

    Exact when either view is free of gaps, or when both step by a common stride (column blocks of one
    buffer). For other pairs of gapped views, crossing address ranges count as an overlap.
    """
    if one.device != other.device or not one.nbytes or not other.nbytes:
        return False
    if one.stop <= other.start or other.stop <= one.start:
        return False
    if _gapless(one):
        return other.touches(one.start, one.stop)
    if _gapless(other):
        return one.touches(other.start, other.stop)
    return not _interleaved(one, other)


def describe_slice(part: TensorView, whole: TensorView) -> str | None:
    """The expression that makes `part` out of `whole`.

    Returns
    -------
    str or None
        `""` for the very same view; an index such as `"[0:9]"`, `"[2, 0:8]"` or `"[:, 0:4]"`; a change of
        form such as `".view(4, 8)"`, `"[0:32].view(4, 8)"` or `".view(float32)"`. Where no such expression exists,
        `"bytes [a, b)"`: the extreme bytes of `whole` that `part` covers, counted from `whole.start`. None when
        the two share no byte.
    """
    if not overlaps(part, whole):
        return None
    if (part.dtype, part.itemsize) == (whole.dtype, whole.itemsize):
        text = _index(part, whole)
        if text is None:
            text = _reshape(part, whole)
    else:
        text = _retype(part, whole)
    if text is None:
        first = max(part.start, whole.start) - whole.start
        text = f"bytes [{first}, {min(part.stop, whole.stop) - whole.start})"
    return text


@lru_cache(maxsize=_GEOMETRIES)  # called for each pointer of each eager launch
def _reach(shape: tuple[int, ...], stride: tuple[int, ...], itemsize: int) -> int:
    if 0 in shape:
        return 0
    return (1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))) * itemsize


def _steps(view: TensorView) -> list[tuple[int, int]]:
    """(stride in bytes, size) of each dimension with size above 1 and nonzero stride, widest first."""
    dims = zip(view.stride, view.shape, strict=True)
    return sorted(((stride * view.itemsize, size) for stride, size in dims if size > 1 and stride), reverse=True)


def _run_starts(address: int, steps: list[tuple[int, int]]) -> list[int]:
    """The address of each run, where runs lie `steps` apart."""
    starts = [address]
    for stride, size in steps:
        starts = [start + index * stride for start in starts for index in range(size)]
    return starts


@lru_cache(maxsize=_GEOMETRIES)
def _dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size > 1 and step != expected:
            return not math.prod(shape)
        expected *= size
    return True


def _gapless(view: TensorView) -> bool:
    reach = view.itemsize
    for stride, size in reversed(_steps(view)):
        if stride > reach:
            return False
        reach += (size - 1) * stride
    return True


def _hits(base: int, steps: list[tuple[int, int]], itemsize: int, start: int, stop: int) -> bool:
    if not steps:
        return base < stop and start < base + itemsize
    (stride, size), inner = steps[0], steps[1:]
    reach = sum((count - 1) * step for step, count in inner) + itemsize
    first = max(0, (start - base - reach) // stride + 1)
    last = min(size - 1, (stop - 1 - base) // stride)
    blocks = (base + index * stride for index in range(first, last + 1))
    return any(start <= block or _hits(block, inner, itemsize, start, stop) for block in blocks)


def _interleaved(one: TensorView, other: TensorView) -> bool:
    """Whether two views lie in different columns of a common row stride."""
    for period in {stride for view in (one, other) for stride, _ in _steps(view)}:
        width, other_width = (
            sum((size - 1) * stride for stride, size in _steps(view) if stride % period) + view.itemsize
            for view in (one, other)
        )
        column = (other.start - one.start) % period
        if width <= column and column + other_width <= period:
            return True
    return False


def _index(part: TensorView, whole: TensorView) -> str | None:
    starts = _starts(part.address - whole.address, whole)
    if starts is None:
        return None
    # Later dimensions are kept first: a part of one row reads [2, 0:8]. Where a dimension of size 1 leaves a choice,
    # the dimension whose stride agrees is the sliced one.
    choices = list(combinations(range(len(whole.shape)), len(part.shape)))[::-1]
    for exact in (True, False):
        for kept in choices:
            pieces = [str(start) for start in starts]
            for dim, size, stride in zip(kept, part.shape, part.stride, strict=True):
                piece = _slice(starts[dim], whole.shape[dim], whole.stride[dim], size, stride, exact)
                if piece is None:
                    break
                pieces[dim] = piece
            else:
                return _bracket(pieces)
    return None


def _starts(distance: int, whole: TensorView) -> list[int] | None:
    """The index of `whole` whose element lies `distance` bytes after its first."""
    left, misfit = divmod(distance, whole.itemsize)
    if misfit or left < 0:
        return None
    starts = [0] * len(whole.shape)
    for dim in sorted(range(len(starts)), key=lambda dim: -whole.stride[dim]):
        if whole.shape[dim] > 1 and whole.stride[dim]:
            starts[dim] = min(left // whole.stride[dim], whole.shape[dim] - 1)
            left -= starts[dim] * whole.stride[dim]
    return None if left else starts


def _slice(start: int, size: int, stride: int, taken: int, taken_stride: int, exact: bool) -> str | None:
    """The slice of a dimension (size, stride) that gives `taken` elements `taken_stride` apart."""
    step = _step(stride, taken, taken_stride, exact)
    if step is None:
        return None
    stop = start + (taken - 1) * step + 1
    if stop > size:
        return None
    if taken == size:
        return ":"
    return f"{start}:{stop}" if step == 1 else f"{start}:{stop}:{step}"


def _step(stride: int, taken: int, taken_stride: int, exact: bool) -> int | None:
    """The step of a slice that turns a dimension's stride into another; not `exact`: any for one element."""
    if taken_stride == stride or (taken == 1 and not exact):
        return 1
    if taken > 1 and stride and taken_stride and not taken_stride % stride:
        return taken_stride // stride
    return None


def _bracket(pieces: list[str]) -> str:
    while pieces and pieces[-1] == ":":
        pieces.pop()
    return f"[{', '.join(pieces)}]" if pieces else ""


def _reshape(part: TensorView, whole: TensorView) -> str | None:
    if not (part.contiguous and whole.contiguous):
        return None
    form = f".view({', '.join(map(str, part.shape))})"
    if (part.start, part.stop) == (whole.start, whole.stop):
        return form
    first, misfit = divmod(part.start - whole.start, whole.itemsize)
    if len(whole.shape) != 1 or misfit or first < 0 or part.stop > whole.stop:
        return None
    return f"[{first}:{first + part.nbytes // part.itemsize}]{form}"


def _retype(part: TensorView, whole: TensorView) -> str | None:
    """`whole.view(dtype)`, if `part` is that view: the last dimension holds the same bytes in other items."""
    if part.start != whole.start or part.stop != whole.stop or len(part.shape) != len(whole.shape):
        return None
    outer = len(part.shape)
    if part.itemsize != whole.itemsize:
        if not _dense_at_last(part, whole):
            return None
        outer -= 1
    dims = zip(part.shape, whole.shape, part.stride, whole.stride, strict=True)
    same = all(
        size == other and (size == 1 or stride * part.itemsize == other_stride * whole.itemsize)
        for size, other, stride, other_stride in list(dims)[:outer]
    )
    return f".view({part.dtype})" if same else None


def _dense_at_last(part: TensorView, whole: TensorView) -> bool:
    """Whether both views have a last dimension whose items follow each other without gaps."""
    return bool(whole.shape) and whole.stride[-1] == 1 and (part.shape[-1] <= 1 or part.stride[-1] == 1)

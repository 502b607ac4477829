from __future__ import annotations

import math
from itertools import product
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from shadowgraph.model.views import TensorView, describe_slice, overlaps


def describe(part: torch.Tensor, whole: torch.Tensor) -> str | None:
    return describe_slice(TensorView.of(part), TensorView.of(whole))


def evaluate(text: str, whole: torch.Tensor) -> Any:
    return eval(f"whole{text}", {"whole": whole, "float32": torch.float32, "int64": torch.int64, "uint8": torch.uint8})


def bytes_of(view: TensorView) -> set[int]:
    starts = (
        view.address + sum(i * s for i, s in zip(index, view.stride, strict=True)) * view.itemsize
        for index in product(*map(range, view.shape))
    )
    return {start + offset for start in starts for offset in range(view.itemsize)}


@st.composite
def tensors(draw: st.DrawFn, max_dims: int = 3) -> torch.Tensor:
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=max_dims))
    tensor = torch.zeros(shape, dtype=draw(st.sampled_from([torch.int32, torch.int64, torch.float16])))
    return cut(draw, tensor) if draw(st.booleans()) else tensor


def cut(draw: st.DrawFn, tensor: torch.Tensor) -> torch.Tensor:
    index: list[int | slice] = []
    for size in tensor.shape:
        start = draw(st.integers(0, size - 1))
        if draw(st.booleans()):
            index.append(start)
        else:
            index.append(slice(start, draw(st.integers(start + 1, size)), draw(st.integers(1, 3))))
    return tensor[tuple(index)]


@st.composite
def cuts(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    whole = draw(tensors())
    return cut(draw, whole), whole


@st.composite
def windows(draw: st.DrawFn) -> TensorView:
    """Any layout over one 64-byte storage, gaps and self-overlap included."""
    shape = draw(st.lists(st.integers(1, 4), max_size=3))
    stride = [draw(st.integers(0, 6)) for _ in shape]
    offset = draw(st.integers(0, 20))
    return TensorView(4096 + 2 * offset, 4096, 64, tuple(shape), tuple(stride), "int16", 2, "cpu")


def test_facts_of_a_row_block() -> None:
    base = torch.zeros(4, 16, dtype=torch.int32)
    view = TensorView.of(base[1:3, 2:10])
    assert view == TensorView(
        address=base.data_ptr() + 18 * 4,
        storage_address=base.data_ptr(),
        storage_nbytes=256,
        shape=(2, 8),
        stride=(16, 1),
        dtype="int32",
        itemsize=4,
        device="cpu",
    )
    assert (view.start, view.stop) == (view.address, view.address + (16 + 8) * 4)
    assert view.nbytes == 64
    assert not view.contiguous
    assert (view.row_nbytes, view.row_stride_nbytes) == (32, 64)


@pytest.mark.parametrize(
    ("tensor", "row", "row_stride"),
    [
        (torch.zeros(5), None, None),
        (torch.zeros(()), None, None),
        (torch.zeros(3, 4), 16, 16),
        (torch.zeros(3, 2, 4), 32, 32),
        (torch.zeros(3, 2, 4)[:, :, :2], None, 32),
        (torch.zeros(3, 2, 4)[:, :1], 16, 32),
        (torch.zeros(4).expand(3, 4), 16, 0),
        (torch.zeros(3, 4).t(), None, 4),
    ],
)
def test_rows(tensor: torch.Tensor, row: int | None, row_stride: int | None) -> None:
    view = TensorView.of(tensor)
    assert (view.row_nbytes, view.row_stride_nbytes) == (row, row_stride)


def test_an_empty_tensor_covers_nothing() -> None:
    for tensor in (torch.zeros(0), torch.zeros(3, 0), torch.zeros(8)[4:4]):
        view = TensorView.of(tensor)
        assert view.start == view.stop
        assert view.nbytes == 0
        assert view.contiguous
        assert not view.touches(0, 2**64)


@given(tensors())
def test_contiguous_and_range_agree_with_torch(tensor: torch.Tensor) -> None:
    view = TensorView.of(tensor)
    touched = bytes_of(view)
    assert view.contiguous == tensor.is_contiguous()
    assert (view.start, view.stop) == (min(touched), max(touched) + 1)


class Loud(torch.Tensor):
    """A subclass whose every override shows that it ran."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("the subclass ran")

    def data_ptr(self) -> int:
        raise AssertionError("the subclass ran")

    dtype = property(lambda self: 1 / 0)


class Wrapper(torch.Tensor):
    """Owns no memory and answers through its own code, sizes included."""

    @staticmethod
    def __new__(cls, size: int) -> Wrapper:
        make: Any = torch.Tensor._make_wrapper_subclass
        made: Wrapper = make(cls, (size,), dispatch_sizes_strides_policy="sizes", dispatch_device=True)
        return made

    def __init__(self, size: int) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, *call: Any, **more: Any) -> Any:
        raise AssertionError("the subclass ran")


def test_no_code_of_a_subclass_runs() -> None:
    plain = torch.zeros(4, dtype=torch.int32)
    assert TensorView.of(plain.as_subclass(Loud)) == TensorView.of(plain)
    for size in (3, 0):
        with pytest.raises(ValueError, match="tensor"):
            TensorView.of(Wrapper(size))


def test_tensors_without_memory_are_refused() -> None:
    with FakeTensorMode():
        fake = torch.zeros(3)
    gone = torch.zeros(3)
    gone.untyped_storage().resize_(0)
    refused = [torch.zeros(3, device="meta"), fake, gone, torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr()]

    def inside(tensor: torch.Tensor) -> torch.Tensor:
        refused.append(tensor)
        with pytest.raises(ValueError, match="no strided memory"):
            TensorView.of(tensor)
        return tensor

    torch.vmap(inside)(torch.zeros(2, 2))
    for tensor in refused:
        with pytest.raises(ValueError, match="tensor"):
            TensorView.of(tensor)


def test_a_lazy_copy_is_not_made_by_looking() -> None:
    lazy = torch._lazy_clone(torch.zeros(3))
    with pytest.raises(ValueError, match="no memory yet"):
        TensorView.of(lazy)
    assert torch._C._is_cow_tensor(lazy)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (lambda b: b, ""),
        (lambda b: b[:9], "[0:9]"),
        (lambda b: b[3:9], "[3:9]"),
        (lambda b: b[5], "[5]"),
        (lambda b: b[5:6], "[5:6]"),
        (lambda b: b[1:12:4], "[1:10:4]"),
        (lambda b: b.view(4, 8), ".view(4, 8)"),
        (lambda b: b[:24].view(3, 8), "[0:24].view(3, 8)"),
        (lambda b: b.view(torch.float32), ".view(float32)"),
        (lambda b: b.view(torch.int64), ".view(int64)"),
        (lambda b: b.view(torch.uint8), ".view(uint8)"),
    ],
)
def test_forms_of_a_vector(part: Any, expected: str) -> None:
    whole = torch.zeros(32, dtype=torch.int32)
    assert describe(part(whole), whole) == expected


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (lambda b: b[2], "[2]"),
        (lambda b: b[2, :8], "[2, 0:8]"),
        (lambda b: b[2, 3], "[2, 3]"),
        (lambda b: b[:2], "[0:2]"),
        (lambda b: b[:, :4], "[:, 0:4]"),
        (lambda b: b[:, 3], "[:, 3]"),
        (lambda b: b[2:3, 5], "[2:3, 5]"),
        (lambda b: b[1:3, 2:5], "[1:3, 2:5]"),
        (lambda b: b[::2], "[0:3:2]"),
        (lambda b: b.view(-1), ".view(64)"),
        (lambda b: b.view(8, 8), ".view(8, 8)"),
        (lambda b: b.view(torch.int64), ".view(int64)"),
        (lambda b: b.t(), "bytes [0, 256)"),
        (lambda b: b.view(torch.int64)[1], "bytes [64, 128)"),
    ],
)
def test_forms_of_a_matrix(part: Any, expected: str) -> None:
    whole = torch.zeros(4, 16, dtype=torch.int32)
    assert describe(part(whole), whole) == expected


def test_leading_rows_of_a_cube() -> None:
    whole = torch.zeros(4, 3, 5)
    assert describe(whole[:2], whole) == "[0:2]"
    assert describe(whole[1, 2], whole) == "[1, 2]"
    assert describe(whole[1, :, 2:4], whole) == "[1, :, 2:4]"
    assert describe(whole[:, 1], whole) == "[:, 1]"


def test_partial_overlap_counts_bytes_of_the_whole() -> None:
    base = torch.zeros(32, dtype=torch.int32)
    assert describe(base[4:20], base[8:16]) == "bytes [0, 32)"
    assert describe(base[12:20], base[8:16]) == "bytes [16, 32)"
    assert describe(base.view(torch.uint8)[3:10], base) == "bytes [3, 10)"
    assert describe(base.view(torch.uint8)[2:-2].view(torch.int16), base) == "bytes [2, 126)"
    odd = TensorView.of(base[1:4])
    assert describe_slice(msgspec.structs.replace(odd, address=odd.address + 2), TensorView.of(base)) == "bytes [6, 18)"


def test_no_shared_byte_is_none() -> None:
    base = torch.zeros(4, 16)
    assert describe(base[:2], base[2:]) is None
    assert describe(base[:, :8], base[:, 8:]) is None
    assert describe(base[:, 8:], base[:, :8]) is None
    assert describe(base.view(-1)[0::2], base.view(-1)[1::2]) is None
    assert describe(base[0, 8:], base[:, :8]) is None
    assert describe(base[:0], base) is None
    view = TensorView.of(base)
    assert describe_slice(msgspec.structs.replace(view, device="cuda:0"), view) is None


@given(cuts())
def test_an_index_expression_evaluates_to_the_part(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    part, whole = pair
    text = describe(part, whole)
    assert text is not None
    assert not text.startswith("bytes")
    made = evaluate(text, whole)
    assert made.data_ptr() == part.data_ptr()
    assert made.shape == part.shape
    assert all(a == b for a, b, size in zip(made.stride(), part.stride(), part.shape, strict=True) if size > 1)


@given(tensors(), st.data())
def test_a_change_of_form_evaluates_to_the_part(base: torch.Tensor, data: st.DataObject) -> None:
    whole = base.contiguous().view(-1)
    count = data.draw(st.integers(1, whole.numel()))
    rows = data.draw(st.sampled_from([n for n in range(1, count + 1) if count % n == 0]))
    part = whole[whole.numel() - count :].view(rows, -1)
    text = describe(part, whole)
    assert text is not None
    made = evaluate(text, whole)
    assert (made.data_ptr(), made.shape, made.stride()) == (part.data_ptr(), part.shape, part.stride())


@given(tensors(), st.sampled_from(["float32", "int64", "uint8"]))
def test_a_change_of_type_evaluates_to_the_part(whole: torch.Tensor, name: str) -> None:
    try:
        part = whole.view(getattr(torch, name))
    except RuntimeError:  # the last dimension does not divide
        return
    if part.dtype == whole.dtype:
        return
    text = describe(part, whole)
    assert text == f".view({name})"
    made = evaluate(text, whole)
    assert (made.data_ptr(), made.shape, made.stride()) == (part.data_ptr(), part.shape, part.stride())


@given(windows(), windows())
def test_any_expression_for_any_two_layouts_is_true(part: TensorView, whole: TensorView) -> None:
    storage = torch.zeros(256, dtype=torch.int16)
    text = describe_slice(part, whole)
    shared = bytes_of(part) & bytes_of(whole)
    if text is None:
        assert not shared
    elif text.startswith("bytes"):
        first, stop = (whole.start + int(number) for number in text[len("bytes [") : -1].split(","))
        assert all(first <= byte < stop for byte in shared)
        assert max(part.start, whole.start) == first
    else:
        base = storage.as_strided(whole.shape, whole.stride, (whole.address - 4096) // 2)
        made = evaluate(text, base)
        assert made.data_ptr() - storage.data_ptr() == part.address - 4096
        assert tuple(made.shape) == part.shape
        moving = [d for d, size in enumerate(part.shape) if size > 1]
        assert [made.stride(d) for d in moving] == [part.stride[d] for d in moving]


@given(windows(), st.integers(4090, 4300), st.integers(0, 40))
def test_touches_agrees_with_the_bytes(view: TensorView, start: int, length: int) -> None:
    expected = any(start <= byte < start + length for byte in bytes_of(view))
    assert view.touches(start, start + length) == expected


@given(windows(), windows())
def test_overlap_misses_nothing_and_is_exact_without_gaps(one: TensorView, other: TensorView) -> None:
    shared = bool(bytes_of(one) & bytes_of(other))
    found = overlaps(one, other)
    assert found == overlaps(other, one)
    if shared:
        assert found
    for view in (one, other):
        if len(bytes_of(view)) == view.stop - view.start and math.prod(view.shape) * 2 == view.stop - view.start:
            assert found == shared

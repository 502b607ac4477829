"""Indices that compiled code asserts, worked out from copies of what a launch was given."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

pytest.importorskip("triton")
import inductor_kernels as kernels
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.localize.index_asserts import evaluator
from shadowgraph.localize.index_asserts import kernel as kernel_model
from shadowgraph.localize.index_asserts.explain import asserted_index, source_copied
from shadowgraph.model.launch_arguments import AssertedIndex
from shadowgraph.model.launches import Access, CompiledCall, Launch, LaunchKind, Pointer
from shadowgraph.model.views import TensorView

SLOTS = [[1, 2, 3, 4, 5], [101, 102, 103, 104, 105]]
SCAN = {"ks0": 5, "ks1": 2, "ks2": 2, "xnumel": 2, "r0_numel": 5}


def launched(kernel: Any, tensors: dict[str, torch.Tensor], **numbers: int) -> Launch:
    pointers = tuple(Pointer(name, TensorView.of(tensor), Access.UNKNOWN) for name, tensor in tensors.items())
    call = CompiledCall(kernel, tuple(numbers.items()))
    return Launch(LaunchKind.TRITON, "compiled", pointers, compiled=call)


def copy_of(tensor: torch.Tensor) -> tuple[int, bytes]:
    return tensor.data_ptr(), tensor.numpy().tobytes()


def explained(kernel: Any, tensors: dict[str, torch.Tensor], **numbers: int) -> AssertedIndex | None:
    before = internal_errors.total
    found = asserted_index(launched(kernel, tensors, **numbers), map(copy_of, tensors.values()))
    assert internal_errors.total == before
    return found


def scan(slots: list[list[int]], **numbers: int) -> AssertedIndex | None:
    given, table = torch.tensor(slots), torch.zeros(2, 2, dtype=torch.int32)
    return explained(
        kernels.triton_red_fused_cumsum_scatter_1, {"in_ptr0": given, "out_ptr1": table}, **{**SCAN, **numbers}
    )


def test_the_columns_that_a_step_needs_and_the_width_that_there_is() -> None:
    assert scan(SLOTS) == AssertedIndex("0 <= tmp24 < ks2", 0, 2, 0, 2, places=(0, 1), into="out_ptr1")


@pytest.mark.parametrize(
    ("slots", "numbers"),
    [
        (SLOTS, {"ks2": 3}),
        ([[2, 3, 4, 5, 5], [102, 103, 104, 105, 105]], {}),
        ([[2, 3], [102, 103]], {"ks0": 2, "r0_numel": 2}),
    ],
    ids=["wider", "even start", "fewer steps"],
)
def test_what_fits_is_not_told(slots: list[list[int]], numbers: dict[str, int]) -> None:
    assert scan(slots, **numbers) is None


def test_only_the_rows_that_do_not_fit() -> None:
    found = scan([[2, 3, 4, 5, 5], [101, 102, 103, 104, 105]])
    assert found is not None
    assert (found.least, found.most, found.places) == (0, 2, (1,))


def test_a_kernel_that_is_not_interpreted_has_its_source_too() -> None:
    compiled = JITFunction(kernels.triton_red_fused_cumsum_scatter_1.fn)
    given, table = torch.tensor(SLOTS), torch.zeros(2, 2, dtype=torch.int32)
    found = explained(compiled, {"in_ptr0": given, "out_ptr1": table}, **SCAN)
    assert found is not None
    assert (found.high, found.most) == (2, 2)


def pickled(kernel: Any) -> Any:
    """As inductor leaves a kernel that a compile worker made, or that its cache held."""
    lost = JITFunction(kernel.fn)
    lost.fn = lost.__globals__ = lost.used_global_vals = None
    return lost


@pytest.mark.parametrize("file", [str(kernels.__file__), "", "/nowhere/kernel.py", str(Path(__file__).parent)])
def test_a_kernel_out_of_inductors_cache_has_its_helpers_in_its_file(file: str) -> None:
    given, table = torch.tensor(SLOTS), torch.zeros(2, 2, dtype=torch.int32)
    tensors = {"in_ptr0": given, "out_ptr1": table}
    launch = launched(pickled(kernels.triton_red_fused_cumsum_scatter_1), tensors, **SCAN)
    assert launch.compiled is not None
    launch = msgspec.structs.replace(launch, compiled=replace(launch.compiled, file=file))
    found = asserted_index(launch, map(copy_of, tensors.values()))
    assert (found is not None) == (file == kernels.__file__), "the scan's helper is defined beside the kernel"
    if found is not None:
        assert (found.high, found.most, found.places) == (2, 2, (0, 1))


def test_nothing_is_told_of_what_was_not_copied() -> None:
    given, table = torch.tensor(SLOTS), torch.zeros(2, 2, dtype=torch.int32)
    tensors = {"in_ptr0": given, "out_ptr1": table}
    launch = launched(kernels.triton_red_fused_cumsum_scatter_1, tensors, **SCAN)
    address, data = copy_of(given)
    assert asserted_index(launch, [(address, data)]) is not None
    for copies in ([], [copy_of(table)], [(address, data[:-8])], [(address, data[:-1])], [(address + 8, data[8:])]):
        assert asserted_index(launch, copies) is None
    without = {name: number for name, number in SCAN.items() if name != "ks1"}
    launch = launched(kernels.triton_red_fused_cumsum_scatter_1, tensors, **without)
    assert asserted_index(launch, [(address, data)]) is None


def test_sizes_that_the_kernel_has_of_its_own() -> None:
    flags, table = torch.tensor([[1, 1, 0, 0, 0], [1, 0, 1, 0, 1]]), torch.zeros(2, 2, dtype=torch.int32)
    tensors = {"in_ptr0": flags, "out_ptr1": table}
    found = explained(kernels.triton_per_fused_cumsum_0, tensors, xnumel=2, r0_numel=5)
    assert found == AssertedIndex("0 <= tmp19 < 2", 0, 2, 0, 2, places=(1,), into="out_ptr1")
    flags[1, 4] = 0
    assert explained(kernels.triton_per_fused_cumsum_0, tensors, xnumel=2, r0_numel=5) is None


def test_an_index_that_is_read_at() -> None:
    index, rows = torch.tensor([3, -1, 9, -10]), torch.arange(30).reshape(10, 3)
    tensors = {"in_ptr0": index, "in_ptr1": rows, "out_ptr0": torch.zeros(4, 3, dtype=torch.int64)}
    assert explained(kernels.triton_poi_fused_index_0, tensors, xnumel=12) is None
    index[1] = -11
    found = explained(kernels.triton_poi_fused_index_0, tensors, xnumel=12)
    assert found == AssertedIndex("0 <= tmp4 < 10", 0, 10, -1, 9, places=(3, 4, 5), into="in_ptr1")
    index[:] = 40
    found = explained(kernels.triton_poi_fused_index_0, tensors, xnumel=12)
    assert found is not None
    assert (found.least, found.most, found.places, found.more_places) == (40, 40, tuple(range(8)), 4)


def test_without_a_mask_blocks_cover_what_is_there_and_no_more() -> None:
    index = torch.tensor([3, 1, 0, 2, 3, 1])
    after = torch.cat([index, torch.tensor([7, 7])])  # in memory behind it
    tensors = {"in_ptr0": after[:6], "in_ptr1": index, "out_ptr0": torch.zeros(6, dtype=torch.int64)}
    launch = launched(kernels.triton_poi_fused_whole_0, tensors, xnumel=6)
    assert asserted_index(launch, [copy_of(after)]) is None
    after[4] = 4
    found = asserted_index(launch, [copy_of(after)])
    assert found == AssertedIndex("tmp0 < 4", None, 4, 0, 4, places=(4,), into="in_ptr1")


@pytest.mark.parametrize(("widest", "across"), [(1, 1), (2, 2), (4, 1), (8, 4), (16, 8), (64, 16)])
def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch, widest: int, across: int) -> None:
    runs: list[tuple[int, int, int]] = []
    real = kernel_model.Kernel.grid

    def grid(self: kernel_model.Kernel, *args: Any) -> tuple[int, int, int]:
        runs.append(real(self, *args))
        return runs[-1]

    monkeypatch.setattr(kernel_model.Kernel, "grid", grid)
    monkeypatch.setattr(kernel_model, "_WIDEST", widest)
    monkeypatch.setattr(kernel_model, "_ACROSS", across)
    found = scan(SLOTS)
    assert found == AssertedIndex("0 <= tmp24 < ks2", 0, 2, 0, 2, places=(0, 1), into="out_ptr1")
    assert runs == [(2 if widest == across else 1, 1, 1)]


@pytest.mark.parametrize(
    ("kernel", "first"),
    [
        (kernels.triton_poi_fused_sort_0, "in_ptr0"),
        (kernels.triton_poi_fused_rewritten_0, "in_out_ptr0"),
        (kernels.triton_poi_fused_persistent_0, "in_ptr0"),
    ],
    ids=["unknown operation", "written before it is read", "grid of another kind"],
)
def test_nothing_is_told_of_what_is_not_understood(kernel: Any, first: str) -> None:
    tensors = {first: torch.tensor([9, 9, 9, 9]), "out_ptr0": torch.zeros(4, dtype=torch.int64)}
    assert explained(kernel, tensors, xnumel=4) is None


def test_the_work_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    index = torch.full((1 << 16,), 40)
    tensors = {"in_ptr0": index, "in_ptr1": torch.arange(30), "out_ptr0": torch.zeros(1)}
    assert explained(kernels.triton_poi_fused_index_0, tensors, xnumel=3 << 16) is not None
    monkeypatch.setattr(evaluator, "WORK", 1 << 16)
    assert explained(kernels.triton_poi_fused_index_0, tensors, xnumel=3 << 16) is None
    monkeypatch.undo()
    assert explained(kernels.triton_poi_fused_index_0, tensors, xnumel=1 << 50) is None


def test_no_source_no_claim() -> None:
    spelled: dict[str, Any] = {}
    exec("def kernel(in_ptr0, xnumel):\n    pass", spelled)
    assert explained(spelled["kernel"], {"in_ptr0": torch.zeros(1)}, xnumel=1) is None
    assert asserted_index(Launch(LaunchKind.TRITON, "own", ()), ()) is None


def test_the_same_is_told_as_by_tritons_own_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run one program after another there, in blocks of other sizes; an assertion ends them."""
    monkeypatch.setattr(interpreter.interpreter_builder, "options", interpreter.InterpreterOptions(debug=True))
    dice, outcomes = random.Random(5), set()
    for _ in range(60):
        steps, rows, page = dice.randint(1, 6), dice.randint(1, 3), dice.randint(1, 3)
        width = dice.randint(1, 4)
        slots = torch.randint(-9, 9, (rows, steps)).sort().values
        table = torch.zeros(rows, width, dtype=torch.int32)
        numbers = {"ks0": steps, "ks1": page, "ks2": width, "xnumel": rows, "r0_numel": steps}
        kernel = kernels.triton_red_fused_cumsum_scatter_1
        found = explained(kernel, {"in_ptr0": slots, "out_ptr1": table}, **numbers)
        if hasattr(kernel, "rewrite"):  # it is interpreted here
            outcomes.add(found is not None)
            assert (found is not None) == fails(kernel[(rows,)], slots, table, *numbers.values(), 1, 4)
        pages = [len(torch.unique_consecutive(row.div(page, rounding_mode="floor"))) for row in slots]
        assert (found is not None) == (max(pages) > width)
        if found is not None:
            assert (found.least, found.most) == (0, max(pages) - 1)
            assert found.places == tuple(row for row, needed in enumerate(pages) if needed > width)
    assert outcomes in ({True, False}, set())


def fails(run: Callable[..., object], *args: object) -> bool:
    try:
        run(*args)
    except Exception as error:
        if "index out of bounds" not in f"{error}{error.__cause__}":
            raise
        return True
    return False


@pytest.mark.parametrize(
    ("table", "copied"),
    [
        (torch.zeros(5, 2, dtype=torch.int32), True),
        (torch.zeros(1, 2, dtype=torch.int32), False),
        (torch.zeros(4, 1, dtype=torch.int32), False),
        (torch.zeros(2, 4, dtype=torch.int32)[:, :2], False),
        (torch.zeros(2, 2, dtype=torch.uint32), False),
    ],
    ids=["more rows", "fewer rows", "other rows", "rows with gaps", "another dtype"],
)
def test_what_a_copy_may_be_of(table: torch.Tensor, copied: bool) -> None:
    launch = launched(
        kernels.triton_poi_fused_copy_0, {"in_ptr0": table, "out_ptr0": torch.zeros(2, 2, dtype=torch.int32)}, xnumel=4
    )
    assert source_copied(launch, "out_ptr0") == ("in_ptr0" if copied else "")


def test_what_a_launch_copies_whole() -> None:
    table, scratch = torch.zeros(2, 2, dtype=torch.int32), torch.zeros(2, 2, dtype=torch.int32)
    tensors = {"in_ptr0": table, "out_ptr0": scratch}
    assert source_copied(launched(kernels.triton_poi_fused_copy_0, tensors, xnumel=4), "out_ptr0") == "in_ptr0"
    assert source_copied(launched(kernels.triton_poi_fused_copy_0, tensors, xnumel=3), "out_ptr0") == ""
    assert source_copied(launched(kernels.triton_poi_fused_copy_0, tensors, xnumel=4), "in_ptr0") == ""
    assert source_copied(launched(kernels.triton_poi_fused_add_0, tensors, xnumel=4), "out_ptr0") == ""
    assert source_copied(launched(kernels.triton_poi_fused_index_0, tensors, xnumel=4), "out_ptr0") == ""

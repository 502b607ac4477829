"""Real sglang code on the CPU writes what its arithmetic says, and only the room given to it is damaged.

Every overflowing run writes into a larger flat tensor: the buffer is a view of its front.
"""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.common.errors import BackendError, MissingPackageError
from shadowgraph.demos.sglang import load as sglang_load
from shadowgraph.demos.sglang.host import (
    AiterKvIndices,
    DecodeRow,
    EagleDraft,
    PaddedDecode,
    enable_interpreter,
    load,
    require_sglang,
    sglang_version,
)
from shadowgraph.demos.sglang.stub_modules import install_standins

# importorskip would import sglang, which fails (and so skips) before its stand-ins are there.
pytestmark = [pytest.mark.sglang, pytest.mark.skipif(sglang_version() is None, reason="needs sglang")]

if sglang_version() is not None:
    enable_interpreter()  # now: the first operation under any TorchDispatchMode of any test imports Triton

ROOM = 4096
CANARY = -7


def with_room(entries: int) -> torch.Tensor:
    return torch.full((entries + ROOM,), CANARY, dtype=torch.int32)


def bytes_changed_behind(memory: torch.Tensor, entries: int) -> int:
    """Bytes from the buffer's end to the last changed entry; every entry up to there must have changed."""
    changed = (memory[entries:] != CANARY).nonzero().flatten()
    assert changed.tolist() == list(range(len(changed)))
    return 4 * len(changed)


def roomy_draft(*shape: int) -> tuple[EagleDraft, torch.Tensor]:
    draft = EagleDraft(*shape)
    draft.init_cuda_graph_state()
    buffer = draft.backend.cuda_graph_kv_indices
    memory = with_room(buffer.numel())
    draft.use_buffer(memory[: buffer.numel()].view_as(buffer))
    return draft, memory


def run_python(code: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("shape", "seq_lens", "past_end", "wrong"),
    [
        ((2, 4, 64, 3), [10, 10], 0, [0, 0, 0]),
        ((2, 4, 64, 3), [16, 13], 48, [0, 4, 0]),
        ((2, 4, 64, 3), [40, 40], 864, [200, 208, 0]),
        ((4, 8, 128, 5), [33, 40, 50, 60], 4448, [984, 1016, 1048, 1080, 0]),
    ],
)
def test_draft_kernel_runs_past_its_rows(
    shape: tuple[int, ...], seq_lens: list[int], past_end: int, wrong: list[int]
) -> None:
    draft, memory = roomy_draft(*shape)
    draft.prepare(seq_lens)
    assert bytes_changed_behind(memory, draft.backend.cuda_graph_kv_indices.numel()) == past_end
    assert draft.bytes_past_end(seq_lens) == past_end
    assert draft.wrong_entries(memory, seq_lens) == wrong


@settings(max_examples=15, deadline=None)
@given(seq_lens=st.lists(st.integers(1, 32), min_size=1, max_size=3))
def test_draft_overrun_is_the_formula_for_any_lengths(seq_lens: list[int]) -> None:
    draft, memory = roomy_draft(3, 2, 32, 2)
    draft.prepare(seq_lens)
    assert bytes_changed_behind(memory, 2 * 3 * 32) == draft.bytes_past_end(seq_lens)
    assert draft.wrong_entries(memory, seq_lens)[-1] == 0


@pytest.mark.parametrize("page_size", [1, 4])
def test_fixed_draft_buffer_holds_every_branch(page_size: int) -> None:
    draft = EagleDraft(2, 4, 64, 3, page_size)
    draft.init_cuda_graph_state(fixed=True)
    buffer = draft.backend.cuda_graph_kv_indices
    seq_lens = [40, 37]
    assert buffer.shape == (3, 2 * 4 * 64)
    assert draft.bytes_past_end(seq_lens) == 0
    draft.prepare(seq_lens)
    assert draft.wrong_entries(buffer.flatten(), seq_lens) == [0, 0, 0]
    for step, recorder in enumerate(draft.backend.attn_backends):
        assert recorder.last_plan.bs == 2
        assert torch.equal(recorder.last_plan.kv_indices, draft.expected_row(step, seq_lens))
        assert recorder.last_plan.kv_indptr[-1] == len(recorder.last_plan.kv_indices)
        assert recorder.cuda_graph_kv_indices[0].data_ptr() == buffer[step].data_ptr()


def test_draft_allocates_a_buffer_without_topk_and_leaves_sglang_as_it_was() -> None:
    draft = EagleDraft(2, 4, 64, 3)
    assert draft.row_entries == 2 * 64
    draft.init_cuda_graph_state()
    assert draft.backend.cuda_graph_kv_indices.shape == (3, 2 * 64)
    assert draft.backend.max_context_len == 64
    real = load("sglang.srt.layers.attention.flashinfer_backend").FlashInferAttnBackend
    assert real.__module__ == "sglang.srt.layers.attention.flashinfer_backend"
    assert not load("sglang.srt.utils").is_flashinfer_available()


def test_draft_rejects_what_it_cannot_run() -> None:
    with pytest.raises(ValueError, match="steps at least 2"):
        EagleDraft(2, 4, 64, 1)
    draft = EagleDraft(2, 4, 64, 3)
    for lens in ([], [1, 1, 1], [0, 1], [65]):
        with pytest.raises(ValueError, match="seq_lens"):
            draft.prepare(lens)
    with pytest.raises(ValueError, match="contiguous int32"):
        draft.use_buffer(torch.zeros((3, 128), dtype=torch.int64))


class Rehome(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives every ``zeros`` and ``ones`` a place in one arena, 16 KiB apart."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.arena = torch.full((1 << 16,), CANARY, dtype=torch.int32)
        self.periods = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in (torch.ops.aten.zeros.default, torch.ops.aten.ones.default):
            return result
        assert result.device.type == "cpu"
        start, self.periods = self.periods, self.periods + 4096
        return self.arena[start : start + result.numel()].view(result.shape).copy_(result)


def test_allocations_of_sglang_can_be_rehomed_by_a_dispatch_mode() -> None:
    load("sglang.srt.layers.attention.flashinfer_backend")
    with Rehome() as mode:
        draft = EagleDraft(2, 4, 64, 3)
        draft.init_cuda_graph_state()
        draft.prepare([40, 40])
    buffer = draft.backend.cuda_graph_kv_indices
    assert buffer.untyped_storage().data_ptr() == mode.arena.untyped_storage().data_ptr()
    behind = mode.arena[buffer.storage_offset() + buffer.numel() :]
    assert int((behind != CANARY).sum()) * 4 == 864


@pytest.mark.parametrize(
    ("shape", "seq_lens", "past_end"),
    [((2, 64, 16), [20, 20], 128), ((4, 128, 64), [10, 12, 14, 16], 176), ((1, 32, 4), [9], 4), ((1, 30, 4), [8], 0)],
)
def test_aiter_buffer_is_sized_by_pages_and_filled_by_tokens(
    shape: tuple[int, int, int], seq_lens: list[int], past_end: int
) -> None:
    driver = AiterKvIndices(*shape)
    driver.allocate()
    entries = driver.backend.cuda_graph_kv_indices.numel()
    assert entries == driver.page_entries
    memory = with_room(entries)
    driver.backend.cuda_graph_kv_indices = memory[:entries]
    driver.fill(seq_lens)
    assert bytes_changed_behind(memory, entries) == past_end == driver.bytes_past_end(seq_lens)
    assert torch.equal(memory[: sum(seq_lens)], driver.expected(seq_lens))


def test_fixed_aiter_buffer_holds_every_token() -> None:
    driver = AiterKvIndices(2, 30, 16)
    driver.allocate(fixed=True)
    buffer = driver.backend.cuda_graph_kv_indices
    assert buffer.shape == (2 * 2 * 16,)
    assert driver.bytes_past_end([30, 30]) == 0
    driver.fill([30, 30])
    assert torch.equal(buffer[:60], driver.expected([30, 30]))


@pytest.mark.parametrize(
    ("fixed", "slots", "positions"),
    [(False, [2, 5, 4, 7], [19, 20, 11, 12]), (True, [2, 5, 0, 0], [19, 20, 0, 0])],
)
def test_padded_rows_keep_the_last_step(fixed: bool, slots: list[int], positions: list[int]) -> None:
    decode = PaddedDecode(4, fixed=fixed)
    decode.prepare([DecodeRow(1, 1, 10), DecodeRow(2, 3, 11), DecodeRow(7, 4, 12), DecodeRow(8, 7, 13)])
    decode.prepare([DecodeRow(5, 2, 20), DecodeRow(6, 5, 21)], padded_to=4)
    assert decode.buffers.req_pool_indices.tolist() == slots
    assert decode.buffers.positions.tolist() == positions
    assert decode.buffers.input_ids.tolist() == [5, 6, 7, 8]
    assert decode.buffers.seq_lens.tolist() == [20, 21, 1, 1]
    with pytest.raises(ValueError, match="padded to 5"):
        decode.prepare([DecodeRow(5, 2, 20)], padded_to=5)


def test_a_missing_or_other_sglang_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    answers: list[tuple[Callable[[str], str], str]] = [(missing, "none is"), (lambda name: "0.5.13", "0.5.13 is")]
    for answer, text in answers:
        monkeypatch.setattr(sglang_load, "version", answer)
        with pytest.raises(
            MissingPackageError, match=f"0.5.12.post1 is needed and {text} installed: in a checkout, python3 tools/b"
        ):
            require_sglang()


def test_an_interpreter_asked_for_too_late_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = types.SimpleNamespace(cdiv=max)  # anything but an interpreted function
    monkeypatch.setitem(sys.modules, "triton.language", compiled)
    with pytest.raises(BackendError, match="imported without TRITON_INTERPRET=1"):
        enable_interpreter()
    monkeypatch.delitem(sys.modules, "triton.language")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    enable_interpreter()
    assert os.environ["TRITON_INTERPRET"] == "1"


def test_importing_the_drivers_imports_neither_sglang_nor_triton() -> None:
    code = "import sys, shadowgraph.demos.sglang.host; print({'sglang', 'triton', 'torchvision'} & {*sys.modules})"
    assert run_python(code).strip() == "set()"


def test_transformers_imported_too_early_is_named() -> None:
    code = """
import sys, types
from shadowgraph.demos.sglang.host import load
sys.modules["transformers"] = types.SimpleNamespace(is_torchvision_available=lambda: False)
try:
    load("sglang.srt.utils")
except Exception as error:
    print(error)
"""
    if "torchvision" not in install_standins():
        pytest.skip("torchvision is really installed")
    assert "transformers was imported before" in run_python(code)


@pytest.mark.slow
def test_engine_standins_let_the_whole_engine_be_imported() -> None:
    code = """
from shadowgraph.demos.sglang.host import load
from shadowgraph.demos.sglang.stub_modules import install_standins
install_standins(engine=True)
print(load("sglang.srt.entrypoints.engine").Engine.__name__)
"""
    assert run_python(code).strip() == "Engine"

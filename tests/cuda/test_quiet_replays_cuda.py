"""Founding bugs after 10,000 quiet replays: the first bad step is dated and its launch named, though not observed."""

from __future__ import annotations

import pytest
import torch
from helpers_cuda import only

import shadowgraph as sg
from shadowgraph.debugger import model_of
from shadowgraph.demos.a1_indptr import TOKENS, Backend
from shadowgraph.demos.a2_kv_indices import LENS, Draft
from shadowgraph.demos.a3_page_table import ROWS, WIDTH, Metadata
from shadowgraph.demos.device import Buffers, CudaDevice
from shadowgraph.tracking import passing

pytestmark = pytest.mark.gpu
QUIET = 10_000


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    return CudaDevice()


@pytest.mark.parametrize("fixed", [False, True])
def test_draft_rows_that_overflow_with_the_first_long_batch(device: CudaDevice, fixed: bool) -> None:
    with sg.debug(backend="cuda", watch_eager="sampled") as debugger:
        with debugger.guard():
            draft = Draft(device, Buffers(device.device, 0), fixed)
        debugger.name("draft", draft)
        lens, short = draft.lens.clone(), torch.full_like(draft.lens, 4)
        graph = device.graph()
        with device.capture(graph):
            kept = draft.cuda_graph_kv_indices.sum(1)
        draft.lens.copy_(short)
        for _ in range(QUIET):
            draft.prepare()
            graph.replay()
        assert passing.on, "invalid: launches are observed still"
        draft.lens.copy_(lens)
        assert tuple(lens.tolist()) == LENS
        for _ in range(4):
            draft.prepare()
            graph.replay()
        if fixed:
            assert debugger.check() == ()
        else:
            found = only(debugger.check())
            model = model_of(graph)
            assert model is not None
            assert (found.code, found.phase, found.graph, found.replay) == ("SG101", "prepare", model.name, QUIET + 1)
            assert found.buffer.name == "draft.cuda_graph_kv_indices"
            assert found.culprit.name == "fill_draft_indices"
            assert found.culprit.file is not None
            assert found.culprit.file.endswith("a2_kv_indices.py")
        del kept


@pytest.mark.parametrize("fixed", [False, True])
def test_a_page_table_that_overflows_once(device: CudaDevice, fixed: bool) -> None:
    """One bad step in hour three, and never again."""
    from shadowgraph.demos.kernels import scatter_pages

    with sg.debug(backend="cuda", watch_eager="sampled") as debugger:
        with debugger.guard():
            metadata = Metadata(Buffers(device.device, 0))
        debugger.name("fa3", metadata)
        graph = device.graph()
        with device.capture(graph):
            kept = metadata.page_table.sum(1)

        def prepare(count: int) -> None:
            scatter_pages[(ROWS,)](metadata.page_table, metadata.pages, WIDTH, count, BOUNDED=fixed, BLOCK=8)

        for at in range(QUIET):
            prepare(6 if at == QUIET - 100 else 4)
            graph.replay()
        if fixed:
            assert debugger.check() == ()
        else:
            found = only(debugger.check())
            assert (found.code, found.phase, found.replay) == ("SG101", "prepare", QUIET - 99)
            assert (found.buffer.name, found.past_end, found.culprit.name) == ("fa3.page_table", 8, "scatter_pages")
        del kept


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("declared", [True, False])
def test_index_pointers_that_a_replay_overwrites(device: CudaDevice, declared: bool, fixed: bool) -> None:
    """Which the host reads for its next plan; the fixed program restores them, or plans from the real lengths."""
    with sg.debug(backend="cuda", watch_eager="sampled") as debugger:
        with debugger.guard():
            backend = Backend(device, Buffers(device.device, 0))
        debugger.name("attn", backend)
        indptr = backend.metadata["flashinfer_kv_indptr"]
        if declared:
            debugger.protect(indptr)
        graph = backend.graphs[4]
        with device.capture(graph):
            kept = backend.forward(4)

        def step(length: int) -> None:
            backend.lens.fill_(length)
            if fixed and declared:
                indptr[1:] = backend.lens.cumsum(0)
            elif fixed:
                indptr.copy_(backend.original)
            backend.plan(4)
            graph.replay()

        for _ in range(QUIET):
            step(TOKENS)
        assert passing.on, "invalid: launches are observed still"
        for _ in range(6):
            step(TOKENS - 11)
        found = [each for each in debugger.check() if each.code == "SG102"]
        if fixed:
            assert found == []
        else:
            first, model = only(found), model_of(graph)
            assert model is not None
            assert (first.phase, first.graph, first.replay) == ("replay", model.name, QUIET + 1)
            assert first.buffer.name.endswith('metadata["flashinfer_kv_indptr"]')
            assert first.culprit.name == "aten.copy_.default"
        del kept

"""Real, unmodified sglang code on a GPU: its allocations, its prepare, its Triton kernels compiled."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import shadowgraph as sg
from shadowgraph.demos.case import Case
from shadowgraph.demos.device import CudaDevice
from shadowgraph.demos.founding import CASES
from shadowgraph.demos.runner import Outcome, run_case
from shadowgraph.demos.sglang.host import SGLANG_VERSION, AiterKvIndices, EagleDraft, load, sglang_version

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.sglang,
    pytest.mark.skipif(sglang_version() != SGLANG_VERSION, reason=f"needs sglang {SGLANG_VERSION}"),
]

EAGLE = [case for case in CASES if case.id.startswith("S-eagle-")]
AITER = [case for case in CASES if case.id.startswith("S-aiter-")]
GRIDS = {48: (3, 2, 4), 864: (3, 2, 4), 4448: (5, 4, 8)}  # of the launch that overruns: steps, requests, branches


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    return CudaDevice()


def the_finding(outcome: Outcome) -> Any:
    """The one finding of a case that passed: damage proved without a debugger, bug found, fixed twin silent."""
    assert outcome.verdict == "passed", outcome.complaints
    found: Any
    (found,) = outcome.findings
    (expected,) = outcome.case.expected
    assert (found.code, found.phase, found.replay, found.past_end) == ("SG101", "prepare", 1, expected.past_end)
    assert found.buffer.name == expected.buffer
    assert found.buffer.allocated[0].function == "init_cuda_graph_state"
    assert (found.bytes.side, found.bytes.truncated) == ("after", False)
    assert found.bytes.distance < 4, "in the first element past the end, whose low byte may be the guard's by chance"
    assert found.culprit.status in ("candidate", "confirmed"), "confirmed if a later step came when it was known"
    assert (found.culprit.kind, found.culprit.name) == ("triton", expected.culprit)
    assert found.culprit.stack[0].function == expected.launched_in
    assert "/sglang/srt/" in found.culprit.stack[0].file, "launched at a line of sglang"
    assert "/sglang/srt/" in found.culprit.source, "a kernel of sglang"
    assert found.candidates == (), "nobody else was given the buffer"
    return found


def test_kernels_are_compiled_here() -> None:
    from triton.runtime.jit import JITFunction

    assert os.environ.get("TRITON_INTERPRET") != "1", "set by nobody: the tests below are about the GPU"
    kernel = load("sglang.srt.speculative.spec_utils").generate_draft_decode_kv_indices
    assert type(kernel) is JITFunction
    assert os.environ.get("TRITON_INTERPRET") != "1"
    assert load("sglang.srt.utils").is_flashinfer_available()


@pytest.mark.parametrize("fixed", [False, True])
def test_driver_holds_what_sglang_wrote(device: CudaDevice, fixed: bool) -> None:
    draft = EagleDraft(2, 4, 64, 3, device=device.device)
    draft.init_cuda_graph_state(fixed=fixed)
    buffer = draft.backend.cuda_graph_kv_indices
    assert buffer.is_cuda
    assert buffer.shape == (3, 2 * 64 * (4 if fixed else 1))
    lens = [40, 37] if fixed else [10, 10]
    assert draft.bytes_past_end(lens) == 0
    draft.prepare(lens)
    assert draft.wrong_entries(buffer.flatten(), lens) == [0, 0, 0]
    for step, recorder in enumerate(draft.backend.attn_backends):
        assert recorder.last_plan.kv_indptr.is_cuda
        assert torch.equal(recorder.last_plan.kv_indices, draft.expected_row(step, lens))


@pytest.mark.parametrize("case", [case for case in EAGLE if case.expected], ids=lambda case: case.id)
@pytest.mark.parametrize("layout", ["isolate", "faithful"])
def test_eagle_overrun_is_found(device: CudaDevice, case: Case, layout: str) -> None:
    found = the_finding(run_case(case, device, layout=layout))
    assert found.culprit.grid == GRIDS[found.past_end]


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
def test_the_next_prepare_confirms_sglangs_kernel(layout: str) -> None:
    lens = [24, 24]
    with sg.debug(backend="cuda", layout=layout, infer=False) as debugger:
        draft = EagleDraft(2, 4, 64, 3, device="cuda")
        with debugger.guard():
            draft.init_cuda_graph_state(fixed=False)
        past = draft.bytes_past_end(lens)
        assert past > 0, "the buffer must be too small for these"
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = draft.backend.cuda_graph_kv_indices + 1
        for _ in range(5):
            draft.prepare(lens)
            graph.replay()
            torch.cuda.synchronize()
        found: Any
        (found,) = debugger.check()
        del kept
    assert (found.code, found.phase, found.replay, found.past_end) == ("SG101", "prepare", 1, past)
    assert (found.culprit.status, found.culprit.name) == ("confirmed", "generate_draft_decode_kv_indices")
    assert "/sglang/srt/" in found.culprit.stack[0].file, "launched at a line of sglang"
    assert found.revision > 1


@pytest.mark.parametrize("case", [case for case in EAGLE if not case.expected], ids=lambda case: case.id)
def test_eagle_within_its_rows_is_silent(device: CudaDevice, case: Case) -> None:
    outcome = run_case(case, device)
    assert outcome.verdict == "passed", outcome.complaints
    assert outcome.fixed is not None
    assert outcome.fixed.findings == ()


def test_the_overruns_are_those_of_the_report() -> None:
    assert [case.expected[0].past_end for case in EAGLE if case.expected] == [48, 864, 4448]
    assert [case.id for case in EAGLE if not case.expected] == ["S-eagle-0"]


@pytest.mark.parametrize("case", AITER, ids=lambda case: case.id)
def test_aiter_overrun_is_found(device: CudaDevice, case: Case) -> None:
    """The backend is AMD's, the kernel and the arithmetic are not."""
    the_finding(run_case(case, device))


def test_fixed_aiter_buffer_holds_every_token(device: CudaDevice) -> None:
    driver = AiterKvIndices(2, 30, 16, device.device)
    driver.allocate(fixed=True)
    driver.fill([30, 30])
    buffer = driver.backend.cuda_graph_kv_indices
    assert buffer.is_cuda
    assert torch.equal(buffer[:60], driver.expected([30, 30]))


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
def test_padded_rows_that_are_forgotten_are_found(device: CudaDevice, layout: str) -> None:
    (case,) = (case for case in CASES if case.id == "S-padded")
    outcome = run_case(case, device, layout=layout)
    assert outcome.verdict == "passed", outcome.complaints
    names = {finding.buffer.name for finding in outcome.findings}
    assert names == {"decode.req_pool_indices", "decode.positions"}, "and not the ids, which are kept by design"
    for finding in outcome.findings:
        assert finding.detail is not None
        assert [(rows.first, rows.last, rows.replay) for rows in finding.detail.stale] == [(2, 3, 1)]
        assert "/sglang/srt/" in finding.culprit.stack[0].file, "launched at a line of sglang"

"""The acceptance cases on a GPU: damage proved, bug found, fixed twin and controls silent."""

from __future__ import annotations

import pytest
import torch
from helpers_cuda import BLOCK, capture, guarded, only, warm_kernels

import shadowgraph as sg
from shadowgraph.demos.case import Case
from shadowgraph.demos.device import CudaDevice
from shadowgraph.demos.runner import ACCEPTANCE, run_case

pytestmark = pytest.mark.gpu

CASES = [case for case in ACCEPTANCE if not case.host_only]
LAYOUTS = ["isolate", "faithful"]
SLEEP = 2_000_000_000  # cycles, about a second


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    return CudaDevice()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Case, device: CudaDevice, layout: str) -> None:
    outcome = run_case(case, device, layout=layout)
    assert outcome.verdict == "passed", outcome.complaints
    assert outcome.case.control == (outcome.buggy is None)
    assert {finding.code for finding in outcome.findings} == {expected.code for expected in case.expected}
    assert {finding.device for finding in outcome.findings} <= {str(device.device)}


def test_the_culprit_of_a_prepare_is_a_candidate_with_its_line(device: CudaDevice) -> None:
    """Stores are not seen on a device: a launch that was given the buffer is named."""
    (case,) = [case for case in CASES if case.id == "A2"]
    found = run_case(case, device).findings[0]
    named = {culprit.name: culprit for culprit in (found.culprit, *found.candidates)}
    assert "fill_draft_indices" in named
    culprit = named["fill_draft_indices"]
    assert culprit.status in ("candidate", "confirmed"), "confirmed if the second step came when it was known"
    assert culprit.stack[0].function == "prepare"
    assert culprit.file is not None
    assert culprit.file.replace("\\", "/").endswith("demos/a2_kv_indices.py")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_eight_replays_queued_behind_a_sleep_with_the_overflow_in_the_third(layout: str) -> None:
    from kernels_cuda import put_late

    warm_kernels()
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    with sg.debug(backend="cuda", layout=layout, infer=False) as debugger:
        table = guarded(debugger, 64)
        debugger.name("table", table)
        graph, _ = capture(lambda: put_late[(1,)](table, counter, 64, 3, 6, BLOCK=BLOCK))
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP)
        for _ in range(8):
            graph.replay()
        early, idle = debugger.findings, torch.cuda.current_stream().query()
        found = only(debugger.check())
        facts = debugger.report(quiet=True).facts
    assert not idle, "the device still slept when all eight were queued; if not, this shows nothing"
    assert early == ()
    assert int(counter.item()) == 8
    assert (found.code, found.phase, found.replay, found.past_end) == ("SG101", "replay", 3, 24)
    assert (found.buffer.name, found.bytes.first, found.occurrences) == ("table", 256, 1)
    assert (found.culprit.name, found.culprit.node, found.culprit.status) == ("put_late", 0, "candidate")
    assert facts.graphs == ((found.graph, 1, 8),)
    assert facts.faults == {}

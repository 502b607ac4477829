"""The founding cases in real, unmodified sglang code."""

from __future__ import annotations

import pytest

from shadowgraph.demos import founding
from shadowgraph.demos.case import Case
from shadowgraph.demos.device import HostDevice
from shadowgraph.demos.founding import CASES
from shadowgraph.demos.runner import run_case
from shadowgraph.demos.sglang.host import SGLANG_VERSION, sglang_version

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(sglang_version() != SGLANG_VERSION, reason=f"needs sglang {SGLANG_VERSION}"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Case) -> None:
    outcome = run_case(case, HostDevice())
    assert outcome.verdict == "passed", outcome.complaints
    if case.control:
        return
    if case.id == "S-padded":
        return
    (found,) = outcome.findings
    assert found.culprit.file is not None
    assert "/sglang/srt/" in found.culprit.file, "launched at a line of sglang"
    assert found.culprit.source is not None
    assert "/sglang/srt/" in found.culprit.source, "a kernel of sglang"
    assert found.buffer.allocated[0].function == "init_cuda_graph_state"
    assert "/sglang/srt/" in found.buffer.allocated[0].file
    assert found.bytes is not None
    assert (found.bytes.distance, found.bytes.truncated) == (0, False)


def test_the_numbers_of_the_reports_are_all_there() -> None:
    past = {case.id: case.expected[0].past_end for case in CASES if case.expected and case.id != "S-padded"}
    assert past == {
        "S-eagle-48": 48,
        "S-eagle-864": 864,
        "S-eagle-4448": 4448,
        "S-aiter-4": 4,
        "S-aiter-128": 128,
        "S-aiter-176": 176,
    }
    assert [case.id for case in CASES if case.control] == ["S-eagle-0"]


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
def test_padded_rows_that_sglang_forgets(layout: str) -> None:
    """Slots and positions, and nothing else: ids are kept by design, and lengths and cache slots are padded."""
    (case,) = (case for case in CASES if case.id == "S-padded")
    outcome = run_case(case, HostDevice(), layout=layout)
    assert outcome.verdict == "passed", outcome.complaints
    assert {found.buffer.name for found in outcome.findings} == {"decode.req_pool_indices", "decode.positions"}
    assert outcome.buggy is not None
    assert outcome.buggy.notes == ()
    for found in outcome.findings:
        assert found.detail is not None
        assert set(found.detail.padded) == {"decode.seq_lens", "decode.out_cache_loc"}
        assert (found.severity, found.detail.refreshed) == ("error", ((0, 1),))
        assert found.culprit.file is not None
        assert found.culprit.file.endswith("/sglang/srt/model_executor/cuda_graph_runner.py")
        assert found.buffer.allocated[0].function == "create"


def test_ids_are_silent_for_the_declaration_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = (case for case in CASES if case.id == "S-padded")
    monkeypatch.setattr(founding, "declare_padding", lambda debugger, buffers: ())
    outcome = run_case(case, HostDevice())
    assert any(found.buffer.name == "decode.input_ids" for found in outcome.findings)

"""The acceptance cases: damage proved, bug named exactly, fixed twin silent; controls silent."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from shadowgraph.common.errors import InvalidCaseError, UsageError
from shadowgraph.demos import a2_kv_indices, a3_page_table, a4_padding, a5_rebound, a6_workspace, a7_slot_cache
from shadowgraph.demos.case import Case, Expected, require
from shadowgraph.demos.device import Buffers, HostDevice, Unwatched
from shadowgraph.demos.runner import ACCEPTANCE, run_case, select


@pytest.fixture(scope="module")
def device() -> HostDevice:
    return HostDevice()


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
@pytest.mark.parametrize("case", ACCEPTANCE, ids=lambda case: case.id)
def test_case(case: Case, device: HostDevice, layout: str) -> None:
    outcome = run_case(case, device, layout=layout)
    assert outcome.verdict == "passed", outcome.complaints
    assert outcome.case.control == (outcome.buggy is None)
    assert outcome.fixed is not None
    assert outcome.fixed.coverage.written, "a silence over nothing"
    assert any(nodes and replays for _, nodes, replays in outcome.fixed.graphs)


def test_no_other_finding_than_those_expected(device: HostDevice) -> None:
    for case in ACCEPTANCE:
        if case.expected:
            outcome = run_case(case, device)
            assert {f.code for f in outcome.findings} == {e.code for e in case.expected}, case.id


def test_the_runner_can_fail(device: HostDevice) -> None:
    """A wrong expectation, a fixed twin that is not fixed, a precondition that does not hold: each is told apart."""
    case = select(ACCEPTANCE, ["A2"])[0]
    wrong = dataclasses.replace(case, expected=(dataclasses.replace(case.expected[0], past_end=868),))
    assert run_case(wrong, device).complaints == ["SG101 on draft.cuda_graph_kv_indices: past_end is 864, not 868"]
    other = dataclasses.replace(case, expected=(Expected("SG102", "kv_indices"),))
    assert run_case(other, device).complaints == ["no SG102 on kv_indices"]

    def never_fixed(dev: Any, debugger: Any, fixed: bool, carve: int) -> object:
        return a2_kv_indices.program(dev, debugger, False, carve)

    loud = run_case(dataclasses.replace(case, program=never_fixed), device)
    assert loud.verdict == "failed"
    assert "the fixed twin is not silent" in loud.complaints[0]

    def unmet(dev: Any) -> bool:
        require(False, "the victim lies behind the rows")
        return True

    invalid = run_case(dataclasses.replace(case, damage=unmet), device)
    assert (invalid.verdict, invalid.buggy) == ("invalid", None)
    harmless = run_case(dataclasses.replace(case, damage=lambda dev: False), device)
    assert harmless.verdict == "invalid"


def test_fixed_programs_do_no_damage(device: HostDevice) -> None:
    assert not a2_kv_indices.program(device, Unwatched(), True, 1 << 14).victim.any()
    assert not a3_page_table.program(device, Unwatched(), True, 1 << 12).victim.any()
    padded = a4_padding.program(device, Unwatched(), True, 1 << 12)
    assert padded.gathered[:, 0].tolist() == [60, 0, 0, 0]
    runner = a5_rebound.program(device, Unwatched(), True, 1 << 12)
    assert runner.victim is not None
    assert (runner.victim.data_ptr(), runner.victim.any().item()) == (runner.before, False)
    assert runner.buf.unique().tolist() == [1.0]
    attention = a6_workspace.program(device, Unwatched(), True, 0)
    assert attention.get_workspace().unique().tolist() == [-1.0]
    assert attention.output.unique().tolist() == [(attention.given * 2).sum().item() - 1]
    backend = a7_slot_cache.program(device, Unwatched(), True, 1 << 12)
    assert backend.outputs[3].unique().tolist() == [3.0]


def test_a_released_piece_goes_to_the_next_buffer_of_its_size(device: HostDevice) -> None:
    buffers = Buffers(device.device, 1 << 10)
    first, other = buffers.zeros((4,), torch.int32), buffers.zeros((8,), torch.int32)
    address = first.fill_(7).data_ptr()
    buffers.release(first)
    larger = buffers.zeros((8,), torch.int32)
    again = buffers.zeros((4,), torch.int32)
    assert (again.data_ptr(), again.tolist()) == (address, [0, 0, 0, 0])
    assert len({larger.data_ptr(), other.data_ptr(), again.data_ptr()}) == 3
    Buffers(device.device).release(first)  # an allocation of its own: nothing to do


def test_select_and_require() -> None:
    assert [case.id for case in select(ACCEPTANCE, ["A3", "A1"])] == ["A3", "A1"]
    with pytest.raises(UsageError, match="no case 'A99'; cases are: A1, "):
        select(ACCEPTANCE, ["A99"])
    with pytest.raises(InvalidCaseError, match="precondition does not hold: water is dry"):
        require(False, "water is dry")


def test_the_rows_that_a4_forgets_are_named_with_the_replay_they_date_from(device: HostDevice) -> None:
    (case,) = select(ACCEPTANCE, ["A4"])
    (found,) = run_case(case, device).findings
    assert found.detail is not None
    assert [(rows.first, rows.last, rows.graph, rows.replay) for rows in found.detail.stale] == [(1, 3, found.graph, 1)]
    assert (found.severity, found.replay, found.detail.refreshed) == ("error", 2, ((0, 0),))
    assert set(found.detail.padded) == {"runner.seq_lens", "runner.out_cache_loc"}

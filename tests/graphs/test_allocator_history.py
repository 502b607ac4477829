"""The allocator's history around captures, with torch's functions replaced."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shadowgraph.graphs.cuda.allocator_history import History, snapshot_of

POOL = (3, 0)
SEGMENT = {"address": 1 << 20, "segment_pool_id": POOL}


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: False, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **words: asked.append(words))
    return asked


def test_only_allocations_are_recorded(recorded: list[dict[str, Any]]) -> None:
    history = History()
    assert history.begin()
    assert "alloc" not in recorded[0]["skip_actions"]
    assert {"free_requested", "free_completed"} <= set(recorded[0]["skip_actions"])
    assert (recorded[0]["enabled"], recorded[0]["context"]) == ("all", None)
    history.end()
    assert recorded[1:] == [{"enabled": None}]


def test_an_older_torch_records_everything(monkeypatch: pytest.MonkeyPatch, recorded: list[dict[str, Any]]) -> None:
    def record(enabled: str, context: Any = None, max_entries: int = 0) -> None:
        recorded.append({"enabled": enabled})

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    assert History().begin()
    assert recorded == [{"enabled": "all"}]


@pytest.mark.parametrize("refusal", [None, TypeError("takes no arguments"), RuntimeError("no such pool")])
def test_a_snapshot_is_of_the_pool_where_torch_can_take_one(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception | None
) -> None:
    def part(handle: tuple[int, int]) -> Any:
        if refusal is not None:
            raise refusal
        return {"segments": [SEGMENT], "device_traces": [], "of": handle}

    whole = {"segments": [SEGMENT, {"address": 0}], "device_traces": []}
    monkeypatch.setattr(torch._C, "_cuda_memorySnapshot", part, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: whole)
    found = snapshot_of(POOL)
    assert found is whole if refusal is not None else found["of"] == POOL


def test_a_pool_without_segments_is_looked_for_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"segments": [SEGMENT], "device_traces": []}
    monkeypatch.setattr(torch._C, "_cuda_memorySnapshot", lambda handle: {"segments": []}, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: whole)
    assert snapshot_of(POOL) is whole

"""What died in the garbage collector has given its memory back before torch's cache is emptied."""

from __future__ import annotations

import pytest
import torch

from shadowgraph.common.finalizer_safe_lock import defer
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs.dispatch import cache_emptying


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    called: list[str] = []
    monkeypatch.setattr(torch._C, "_cuda_emptyCache", lambda: called.append("emptied"), raising=False)
    return called


def test_the_ends_of_buffers_come_first(log: list[str]) -> None:
    cache_emptying.install(lambda: log.append("swept"))
    try:
        defer(lambda: log.append("ended"))
        torch._C._cuda_emptyCache()
    finally:
        cache_emptying.uninstall()
    assert log == ["ended", "swept", "emptied"]
    torch._C._cuda_emptyCache()
    assert log[-2:] == ["emptied", "emptied"], "not after the debugger"


def test_an_error_of_ours_stops_nothing(log: list[str]) -> None:
    def fail() -> None:
        raise RuntimeError("ours")

    before = internal_errors.total
    cache_emptying.install(fail)
    try:
        torch._C._cuda_emptyCache()
    finally:
        cache_emptying.uninstall()
    assert (log, internal_errors.total) == (["emptied"], before + 1)

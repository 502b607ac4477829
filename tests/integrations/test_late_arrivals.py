"""flashinfer imported while a debugger watches: the very first capture is heard of already."""

from __future__ import annotations

import sys
from types import ModuleType

import planning_wrappers as wrappers
import pytest
import torch

import shadowgraph as sg
from shadowgraph.integrations import flashinfer_adapter
from shadowgraph.integrations.flashinfer_versions import WRAPPERS


def test_the_first_capture_after_a_late_import_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_adapter, "installed", lambda: "0.6.11")
    monkeypatch.setattr(flashinfer_adapter, "_classes", lambda known: [(wrappers.DecodeWrapper, WRAPPERS[0])])
    monkeypatch.setattr(flashinfer_adapter, "_attached", None)
    assert "flashinfer" not in sys.modules
    try:
        with sg.debug() as debugger:
            monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))
            indptr, indices, last = (torch.zeros(n, dtype=torch.int32) for n in (4, 64, 3))
            wrapper = wrappers.DecodeWrapper(torch.zeros(256, dtype=torch.uint8), indptr, indices, last)
            source = torch.tensor([0, 4, 9, 15], dtype=torch.int32)
            wrapper.plan(source, indices, last)
            graph = sg.HostGraph()
            with sg.host_graph(graph):
                wrapper.run()
            assert debugger.supervisor.checks.rebound.graphs_of(wrapper) == [graph.model]
    finally:
        attached = flashinfer_adapter._attached
        assert attached is not None
        attached.take_down()

"""A conditional node of a real graph: what is inside is listed where the driver tells."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from helpers_cuda import guarded, warm_kernels

import shadowgraph as sg
from shadowgraph.debugger import model_of
from shadowgraph.graphs.cuda.driver import CONDITIONAL, ConditionalParameters, MemsetParameters, driver, raw_graph
from shadowgraph.model.device_nodes import NodeKind
from shadowgraph.render.text.nodes_text import nodes_text

pytestmark = pytest.mark.gpu


def add_conditional(graph: int, after: int, target: Any) -> None:
    """An ``if`` that always holds, behind a node, whose body sets a tensor's bytes to 3."""
    calls, context = driver(), ctypes.c_void_p()
    calls.call("cuCtxGetCurrent", ctypes.byref(context))
    handle = ctypes.c_uint64()
    always = ctypes.c_uint(1), ctypes.c_uint(1)  # the value at each launch, CU_GRAPH_COND_ASSIGN_DEFAULT
    calls.call("cuGraphConditionalHandleCreate", ctypes.byref(handle), ctypes.c_void_p(graph), context, *always)
    held, node, before = ConditionalParameters(), ctypes.c_void_p(), (ctypes.c_void_p * 1)(after)
    held.kind, held.handle, held.condition, held.size, held.ctx = CONDITIONAL, handle.value, 0, 1, context
    calls.call(
        "cuGraphAddNode_v2", ctypes.byref(node), ctypes.c_void_p(graph), before, None, ctypes.c_size_t(1),
        ctypes.byref(held),
    )  # fmt: skip
    inside, memset = ctypes.c_void_p(), MemsetParameters()
    memset.dst, memset.value, memset.element, memset.width, memset.height = target.data_ptr(), 3, 1, target.nbytes, 1
    calls.call(
        "cuGraphAddMemsetNode", ctypes.byref(inside), ctypes.c_void_p(held.graphs[0]), None, ctypes.c_size_t(0),
        ctypes.byref(memset), context,
    )  # fmt: skip


def test_what_is_inside(caplog: pytest.LogCaptureFixture) -> None:
    warm_kernels()
    with sg.debug(backend="cuda", infer=False) as debugger:
        table, target = guarded(debugger, 64), guarded(debugger, 16, dtype=torch.uint8)
        graph: Any = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            table.add_(1)
        raw = raw_graph(graph)
        add_conditional(raw, driver().nodes(raw)[-1], target)
        graph.instantiate()
        graph.replay()
        torch.cuda.synchronize()
        assert target.tolist() == [3] * 16
        model = model_of(graph)
        assert model is not None
        kernel, node = model.device_nodes
        assert (kernel.kind, node.kind, node.after) == (NodeKind.KERNEL, NodeKind.CONDITIONAL, (0,))
        text = nodes_text(model)
        if driver().has("cuGraphNodeGetParams"):
            assert (node.name, node.note) == ("if: nodes 0", "")
            (inner,) = node.inner
            assert inner.kind is NodeKind.MEMSET
            assert [(where.start, where.nbytes) for where in inner.writes] == [(target.data_ptr(), 16)]
            assert "   1.0  memset" in text
        else:
            assert (node.inner, node.note) == (
                (),
                "its inside is not read: this driver has no cuGraphNodeGetParams; a newer one does",
            )
            assert node.note in text
        debugger.locate(graph)
        graph.replay()
        assert debugger.check() == ()
        assert debugger.facts().faults == {}
    assert any("no closer look: the program keeps the graph" in record.getMessage() for record in caplog.records)

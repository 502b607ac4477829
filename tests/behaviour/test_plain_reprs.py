"""What objects say of themselves in a terminal: one line, without a walk, a check or an error."""

from __future__ import annotations

import pytest
import torch

import shadowgraph as sg


def test_each_says_what_it_holds() -> None:
    graph = sg.HostGraph()
    name = graph.model.name
    assert repr(graph) == f"<HostGraph {name}: nothing captured>"
    with sg.debug() as debugger:
        held = len(debugger.buffers)
        with debugger.guard():
            table = torch.zeros(4, dtype=torch.int32)
        debugger.name("table", table)
        with sg.host_graph(graph):
            assert repr(graph) == f"<HostGraph {name}: capturing>"
            out = table + 1
        graph.replay()
        watch = debugger.watch(table)
        assert repr(graph) == f"<HostGraph {name}: 1 node, 1 replay>"
        assert repr(debugger.graph(graph)) == f"<Graph {name}: 1 node, 1 replay>"
        assert repr(watch) == "<Watch of table: 0 changes>"
        assert repr(sg.host_graph(graph)) == f"<host_graph of <HostGraph {name}: 1 node, 1 replay>>"
        buffer = debugger.buffers[held]
        assert repr(buffer) == (
            f"<Buffer #{buffer.serial} table: int32[4], 16 bytes at {table.data_ptr():#x}, static, guarded>"
        )
        assert repr(debugger.buffers).startswith(f"<{held + 2} buffers, ")
        said = f"1 graph, {held + 2} buffers, 0 findings, 0 notes>"
        assert repr(debugger) == f"<Debugger of the host backend, watching: {said}"
        debugger.pause()
        assert repr(debugger) == f"<Debugger of the host backend, paused: {said}"
        debugger.resume()
    assert repr(debugger) == f"<Debugger of the host backend, not watching: {said}"
    assert repr(debugger.names).startswith("<NameBook: ")
    del out


def test_a_finding_is_one_line() -> None:
    with sg.debug() as debugger:
        with debugger.guard():
            scale = torch.tensor([2.0, 1.0])
        debugger.invariant(scale, "nondecreasing")
        (found,) = debugger.check()
    assert repr(found) == f"<Finding #{found.id}, error: {found.message}>"
    assert "\n" not in repr(found)


def test_no_repr_fails_or_asks_the_names_while_it_must_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise RuntimeError

    with sg.debug() as debugger:
        with debugger.guard():
            table = torch.zeros(4)
        monkeypatch.setattr("shadowgraph.model.buffers.namer_of", broken)
        (buffer,) = [b for b in debugger.buffers if b.start == table.data_ptr()]
        assert repr(buffer).startswith(f"<Buffer #{buffer.serial}: float32[4], 16 bytes at ")

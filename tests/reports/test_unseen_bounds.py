"""A writer that is not seen is bounded by the program's lines at the checks around it."""

from __future__ import annotations

import ctypes
import inspect

import pytest
import torch

import shadowgraph as sg


def poke(tensor: torch.Tensor) -> None:
    """Writes past the end without an operator, as a C++ kernel does."""
    ctypes.memset(tensor.data_ptr() + tensor.nbytes, 1, 4)


def line_of(words: str) -> int:
    lines, first = inspect.getsourcelines(run)
    return first + next(place for place, line in enumerate(lines) if line.rstrip().endswith(words))


def run(unseen: bool) -> tuple[sg.Debugger, str]:
    with sg.debug() as debugger:
        with debugger.guard():
            table = torch.zeros(16)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            _kept = table * 2
        graph.replay()  # the check before
        if unseen:
            poke(table)
        else:
            table.fill_(3)
        graph.replay()  # the check after
        return debugger, str(debugger.report(quiet=True))


def test_an_unseen_writer() -> None:
    debugger, text = run(unseen=True)
    (found,) = debugger.findings
    assert found.culprit.name is None
    lines = line_of("# the check before"), line_of("# the check after")
    assert tuple(frame.line for frame in found.culprit.bounds) == lines
    before, after = (f"test_unseen_bounds.py:{line}" for line in lines)
    (row,) = [line for line in text.splitlines() if line.startswith("  between ")]
    assert before in row
    assert row.endswith(after)


def test_nothing_is_bounded_where_nothing_is_broken() -> None:
    debugger, text = run(unseen=False)
    assert debugger.findings == ()
    assert "  between " not in text


@pytest.mark.parametrize("in_graph", [True, False])
def test_a_writer_that_is_seen_has_no_bounds(in_graph: bool) -> None:
    from shadowgraph.demos.kernels import fill

    with sg.debug() as debugger:
        with debugger.guard():
            table = torch.zeros(16, dtype=torch.int32)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            if in_graph:
                fill[(1,)](table, 0, 18, 1, BLOCK=64)
            _kept = table * 2
        graph.replay()
        if not in_graph:
            fill[(1,)](table, 0, 18, 1, BLOCK=64)
        graph.replay()
    (found,) = debugger.findings
    assert (found.culprit.name, found.culprit.bounds) == ("fill", ())

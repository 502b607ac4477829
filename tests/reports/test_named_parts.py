"""Parts of buffers go by what they are: not by the whole's name, not by the name of another part."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import shadowgraph as sg
from shadowgraph.checks.rebound.details import _untracked
from shadowgraph.render.text.text import Report


class Runner:
    """Owns buffers by attribute."""

    def __init__(self, **owned: Any) -> None:
        vars(self).update(owned)


def rebound(moves: bool) -> tuple[sg.Debugger, str]:
    """A graph reads one window of a pool; the attribute moves on to another window of it, or stays."""
    with sg.debug() as debugger:
        with debugger.guard():
            pool, table = torch.zeros(64, dtype=torch.int64), torch.arange(64.0)
        runner = Runner(meta=pool[0:8])
        debugger.name("w", runner)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            _out = table[runner.meta]
        debugger.refreshes(graph, runner, "meta")
        for step in range(3):
            with debugger.prepare(graph):
                if moves and step == 1:
                    runner.meta = pool[16:24]
                runner.meta.copy_(torch.arange(8) + step)
            graph.replay()
        text = str(debugger.report(quiet=True))
    return debugger, text


def test_an_attribute_that_moved_within_its_buffer() -> None:
    debugger, text = rebound(moves=True)
    (found,) = debugger.findings
    assert found.code == "SG108"
    assert f"reads [0:8] of {found.buffer.name} (int64[8]), but w.meta leads to bytes 128 to 191 of the same" in text
    assert found.buffer.name.startswith("int64[64] from ")
    now = found.detail.now
    assert (now.shape, now.nbytes, now.address - found.buffer.address) == ((8,), 64, 128)
    assert "  instead    bytes 128 to 191 of the same buffer  int64[8]  64 bytes at " in text


def test_an_attribute_that_stays() -> None:
    assert rebound(moves=False)[0].findings == ()


def test_new_memory_that_nothing_names_goes_by_its_address() -> None:
    from shadowgraph.checks.rebound.details import Rebound
    from shadowgraph.model.views import TensorView

    kept = torch.zeros(4)
    view = TensorView.of(kept)
    facts = Rebound("page_table", "Metadata", view, None, None, False)
    with sg.debug() as debugger:
        found = _untracked(view.hull, facts, debugger.monitor.context)
    assert found is not None
    assert found.name == f"memory at {kept.data_ptr():#x}"


def stale(padded: bool) -> sg.Debugger:
    """The graph reads the first row of a table of two dimensions as slots."""
    with sg.debug() as debugger:
        with debugger.guard():
            big, other = torch.zeros(8, 4, dtype=torch.int64), torch.zeros(8, dtype=torch.int64)
            positions, table = torch.zeros(8, dtype=torch.int64), torch.arange(64.0)
        runner = Runner(big=big, other=other, positions=positions)
        debugger.name("runner", runner)
        slots = big.view(-1)[:4]
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            _out = table[slots] + other[:4] + positions[:4]
        for rows, value in ((4, 1), (1, 2)):
            with debugger.prepare(graph):
                for tensor in (slots, other[:4], positions[:4]):
                    if padded or tensor is not slots:
                        tensor.zero_()
                    tensor[:rows].copy_(torch.arange(rows) + value)
            graph.replay()
    return debugger


def test_rows_of_a_part_are_not_those_of_the_whole() -> None:
    (found,) = stale(padded=False).findings
    assert found.message.startswith("SG103 stale rows: rows 1 to 3 of runner.big[0] (int64[4]) still hold")
    assert (found.buffer.name, found.buffer.view) == ("runner.big", "[0]")
    assert "  buffer     runner.big[0]  int64[4]  32 bytes at " in str(Report(stale(padded=False).facts()))


def test_rows_of_a_part_that_are_refreshed() -> None:
    assert stale(padded=True).findings == ()


@pytest.mark.parametrize("whole", [True, False])
def test_an_owner_of_more_is_not_called_a_part(whole: bool) -> None:
    from shadowgraph.demos.kernels import fill

    with sg.debug() as debugger:
        with debugger.guard():
            pool = torch.zeros(16, dtype=torch.int32)
        runner = Runner(pool=pool, window=pool[12:16])
        debugger.name("r", runner)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            _out = pool * 2 if whole else runner.window * 2
        fill[(1,)](pool, 0, 19, 1, BLOCK=64)
        graph.replay()
    (found,) = debugger.findings
    assert "  alias      r.window is r.pool[12:16]\n" in str(debugger.report(quiet=True))
    assert found.buffer.name == "r.pool"
